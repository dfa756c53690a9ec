"""The requests that may not wait for their first step for ever, by the ends of their patience."""

from collections.abc import Iterator
from heapq import heappop, heappush

from service.engine.request import Request
from service.errors import QueueTimeout


class QueueDeadlines:
    """The deadlines of requests that may still wait; a look at them costs the same whatever their number."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, str, float]] = []  # a heap of ends, ids and limits

    def add(self, request: Request) -> None:
        """Watch a request, if it has a deadline."""
        if request.queue_deadline is not None:
            heappush(self._ends, (request.queue_deadline.end_s, request.id, request.queue_deadline.limit_s))

    def take_over(self, now_s: float) -> Iterator[tuple[str, QueueTimeout]]:
        """Yield the ids of requests whose deadline is over, whatever has become of them, each with its error."""
        while self._ends and self._ends[0][0] <= now_s:
            _, request_id, limit_s = heappop(self._ends)
            yield request_id, QueueTimeout(limit_s)
