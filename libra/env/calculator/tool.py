"""The calculator itself: one operation a call. Runs in a tool worker (loaded by file); `run` is also the script's oracle.

No imports, on purpose: the worker starts without this package on its path.
"""

HIGHEST = 99
"""Values, given or computed, run from 0 to this."""


def run(argument: str) -> tuple[bool, str]:
    """`"43 - 12"` -> (True, "31"); (False, "malformed") or (False, "range") for what is no call or leaves the range."""
    words = argument.split(" ")
    if len(words) != 3 or not (_is_value(words[0]) and _is_value(words[2])):
        return False, "malformed"
    left, right = int(words[0]), int(words[2])
    match words[1]:
        case "+":
            value = left + right
        case "-":
            value = left - right
        case "*":
            value = left * right
        case _:
            return False, "malformed"
    return (True, str(value)) if 0 <= value <= HIGHEST else (False, "range")


def _is_value(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= 2
