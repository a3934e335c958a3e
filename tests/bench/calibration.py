"""Prints the cost model's calibration as JSON lines: one an anchor, what each assumption is worth, the constants used.

python tests/bench/calibration.py        from the repository's root; exit code 1 when an anchor misses its bounds
"""

import json

import msgspec

from libra.config.parts import find_part, load_hardware, load_model
from libra.core.cost.calibration import anchors, sensitivity

HARDWARE, MODEL = "a800-sxm4-80gb", "qwen3-14b"


def main() -> int:
    hardware = load_hardware(find_part("hardware", HARDWARE))
    model = load_model(find_part("model", MODEL))
    ok = True
    for anchor in anchors(hardware, model):
        ok = ok and anchor.holds
        line = {"bench": "calibration", **msgspec.to_builtins(anchor)}
        print(json.dumps(line | {"relative_error": round(anchor.relative_error, 4), "holds": anchor.holds}))
    for change, short, long in sensitivity(hardware, model):
        print(json.dumps({"bench": "calibration", "change": change, "short": round(short, 3), "long": round(long, 3)}))
    constants = {"hardware": msgspec.to_builtins(hardware), "model": msgspec.to_builtins(model)}
    print(json.dumps({"bench": "calibration", "constants": constants}))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
