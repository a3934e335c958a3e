"""Seconds and bytes of everything: what the live core, the simulator and the planner all believe.

    HardwareConfig + ModelShape + TP  ->  EngineCost     step_s, decode_s, prefill_s, turn_s, capacity_tokens   (engine)
                                      ->  batch          one batch on one engine, with pre-emption              (batch)
                                      ->  move           KV moves, weight publication, changes of role          (move)
                                      ->  training       seconds of a step, memory of both stages               (training)
    predicted and observed seconds    ->  Correction     a slow factor per engine kind                          (correction)
    published figures                 ->  calibration    targets, what we get, the residual errors              (calibration)

All of it is pure: no clock, no files. Every constant is a field of `libra.config.parts` with its unit and source.
Devices divide work and bytes once: a formula holds TP in its denominator at most one time.
"""

from libra.core.cost.correction import Correction
from libra.core.cost.engine import EngineCost

__all__ = ["Correction", "EngineCost"]
