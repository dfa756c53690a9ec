"""The requests that may not wait for their first step for ever, by the ends of their patience."""

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush

from service.engine.request import Request
from service.errors import QueueTimeout

# Deadlines of requests that have ended are dropped once there are so many times more deadlines than open requests.
MAX_SURPLUS, MIN_KEPT = 2, 64


class QueueDeadlines:
    """The deadlines of requests that may still wait; a look at them costs the same whatever their number."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, str, float]] = []  # a heap of ends, ids and limits

    def __len__(self) -> int:
        """Return the number of deadlines that are kept."""
        return len(self._ends)

    def add(self, request: Request, open_ids: Collection[str]) -> None:
        """Watch a request, if it has a deadline; those that are not open are watched no longer."""
        if request.queue_deadline is None:
            return
        heappush(self._ends, (request.queue_deadline.end_s, request.id, request.queue_deadline.limit_s))
        if len(self._ends) > max(MIN_KEPT, MAX_SURPLUS * len(open_ids)):
            self._ends = [end for end in self._ends if end[1] in open_ids]
            heapify(self._ends)

    def take_over(self, now_s: float) -> Iterator[tuple[str, QueueTimeout]]:
        """Yield the ids of requests whose deadline is over, whatever has become of them, each with its error."""
        while self._ends and self._ends[0][0] <= now_s:
            _, request_id, limit_s = heappop(self._ends)
            yield request_id, QueueTimeout(limit_s)
