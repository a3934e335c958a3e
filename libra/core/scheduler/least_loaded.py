"""`least_loaded`: every turn goes to the engine with the fewest outstanding tokens for its speed.

It looks at no history and moves freely: the strong and simple control that other policies are measured against.
"""

from collections.abc import Sequence

from libra.core.scheduler import EngineLoad, TurnView


class LeastLoaded:
    def choose(self, turn: TurnView, engines: Sequence[EngineLoad]) -> int:
        return min(range(len(engines)), key=lambda i: (engines[i].outstanding_tokens / engines[i].speed, engines[i].id))
