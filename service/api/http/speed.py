"""The rate of departures from a queue, measured over the latest ones."""

from collections import deque

NUM_MEASURED = 32  # the latest departures


class Speed:
    """The measured speed of what leaves in portions: requests, or tokens of requests."""

    def __init__(self) -> None:
        self._departures: deque[tuple[float, int]] = deque(maxlen=NUM_MEASURED)

    def add(self, amount: int, now_s: float) -> None:
        """Count what has left at a moment."""
        self._departures.append((now_s, amount))

    def seconds_for(self, amount: float, now_s: float) -> float:
        """Return how long it takes until so much more has left; 0 before anything has left."""
        total = sum(left for _, left in self._departures)
        if total == 0:
            return 0.0
        return amount * (now_s - self._departures[0][0]) / total
