"""The run's clock: seconds since the run began, as the core, the journal and people are told them.

In a real job they are real seconds. In an emulated one `speed` of them pass in a real second; what is real there (silence of
a process, the length of a stop) is measured with `wall`.
"""

from time import monotonic

import anyio


class Clock:
    """Called, it gives the run's seconds. `start` are those that passed before: a run that goes on does so in time, too."""

    def __init__(self, speed: float = 1.0, start: float = 0.0) -> None:
        self.speed = speed
        self._began = monotonic() - start / speed

    def __call__(self) -> float:
        return self.wall() * self.speed

    def wall(self) -> float:
        """Real seconds since the run began."""
        return monotonic() - self._began

    async def sleep_until(self, at: float) -> None:
        """Until the run's clock reads `at`."""
        await anyio.sleep(max(0.0, at - self()) / self.speed)
