"""The dashboard's room: nothing is in it yet. Whatever comes imports no torch."""
