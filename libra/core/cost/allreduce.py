"""Seconds of one tensor-parallel all-reduce by message size, from a table of medians.

A published row has four classes of message size. Each median is placed at the geometric middle of its class, and seconds
are interpolated between middles on log-log axes. Below the first middle the latency is flat; above the last one seconds
grow with the bytes (bandwidth-bound), which also covers the large messages of prefill. Called by `engine` and `training`.
"""

from math import exp, log

from libra.config.parts import HardwareConfig
from libra.errors import PreflightError

CLASS_MIDDLES_BYTES = (32 * 2**10, 256 * 2**10, 2**21.5, 2**24.5)
"""Geometric middles of the classes < 64 KB (its half), 64 KB - 1 MB, 1 - 8 MB and 8 - 64 MB."""


def allreduce_s(hardware: HardwareConfig, tp: int, message_bytes: float) -> float:
    """Seconds to sum `message_bytes` over `tp` devices of one node; 0 for one device.

    A degree between two listed ones is interpolated in log2(TP); one below the smallest listed takes its row. Raises
    PreflightError where the table does not reach `tp`.
    """
    if tp == 1:
        return 0.0
    table = hardware.allreduce_us
    if tp in table:
        return _interpolated_us(table[tp], message_bytes) * 1e-6
    above = min((k for k in table if k > tp), default=None)
    if above is None:
        raise PreflightError(
            [
                f"all-reduce on {hardware.name}: got TP {tp}, expected at most {max(table, default=1)}; "
                f"measure it and add allreduce_us.{tp} to the hardware file, or choose a smaller TP"
            ]
        )
    high = _interpolated_us(table[above], message_bytes)
    below = max((k for k in table if k < tp), default=None)
    if below is None:
        return high * 1e-6
    low = _interpolated_us(table[below], message_bytes)
    return (low + (high - low) * log(tp / below) / log(above / below)) * 1e-6


def _interpolated_us(medians_us: tuple[float, ...], message_bytes: float) -> float:
    if message_bytes <= CLASS_MIDDLES_BYTES[0]:
        return medians_us[0]
    for i, right in enumerate(CLASS_MIDDLES_BYTES[1:]):
        if message_bytes <= right:
            left = CLASS_MIDDLES_BYTES[i]
            share = log(message_bytes / left) / log(right / left)
            return medians_us[i] * exp(share * log(medians_us[i + 1] / medians_us[i]))
    return medians_us[-1] * message_bytes / CLASS_MIDDLES_BYTES[-1]
