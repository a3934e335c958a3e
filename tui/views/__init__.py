"""The screens as pure functions: `Model` and `Ui` in, lines of styled text out. Nothing here knows Textual."""
