"""What a run leaves behind and shows: journal and replay, metrics and summary, logs, display and picture.

    core's events ----> journal --> replay            (the same commands again, or a named difference)
    events, commands -> summary.Tally --> summary.json, and the numbers of the display
    metrics, gauges --> metrics.jsonl --> picture     (a process of its own)

No module here imports torch; only `picture` imports matplotlib, only `screen` imports rich.
"""
