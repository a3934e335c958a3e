"""Textual widgets of our own, drawn by the Line API."""
