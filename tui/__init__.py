"""The dashboard: another process's look at a run, live or replayed, and the keyboard that may change it.

    controller ─ view.sock ─> Live ┐                       ┌─> views (pure: model in, lines out) ─> Canvas ─> terminal
    journal ─────> Rewind ─> Replay┴─> Feed ─> Model ──────┤
                                                           └─> keys ─> Draft ─> Desk ─ view.sock: is it legal?
                                                                                     ├ worker process: what would it cost?
                                                                                     └ control.sock: the order, its answer

Invariants: the event loop never waits for a socket, a file or a process (threads do, each with a deadline); everything kept
has a bound; nothing is ordered without a dialog whose focus is on Cancel. `terminal` must run before textual is imported.
"""
