"""Faults on order: which tool call of which attempt misbehaves. Used by sessions; the worker then really does it.

Drawn by hash, not by a generator, so that a fault depends on nothing but (seed, fault_key, call): the same run has the
same faults whatever the order of calls, and a retry, which has another key, draws afresh.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

from libra.config.worlds import ToolFault

Fault = Literal["none", "hang", "crash", "flood", "fail"]


def draw_fault(fault: ToolFault, seed: int, fault_key: Sequence[int], call: int) -> Fault:
    """What call number `call` (from 0) of this attempt suffers. kind="fail" strikes every call, whatever the rate."""
    if fault.kind in ("none", "fail"):
        return fault.kind
    text = " ".join(map(str, (seed, *fault_key, call)))
    drawn = int.from_bytes(blake2b(text.encode(), digest_size=8, person=b"libra.fault").digest(), "big")
    return fault.kind if (drawn >> 11) * 2.0**-53 < fault.rate else "none"
