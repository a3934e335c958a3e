"""How fast a counter grows, for displays."""

from collections import deque


class Rate:
    """Tokens per second over the last `window_s` seconds, from a counter read now and then."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, int]] = deque(maxlen=256)

    def update(self, t: float, total: int) -> float:
        """Add a reading and return the rate; 0.0 until there are two."""
        self._points.append((t, total))
        while len(self._points) > 2 and self._points[1][0] <= t - self._window_s:
            self._points.popleft()
        t0, n0 = self._points[0]
        span = t - t0
        return (total - n0) / span if span > 0 else 0.0
