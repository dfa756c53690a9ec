"""The requests that the process holds, what they take while they wait, and the most that they may take."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.api.http.speed import Speed
from service.errors import BodyBytesFull, Overloaded, QueuedTokensFull, QueueFull
from service.observability.clock import Clock

MIN_RETRY_S, MAX_RETRY_S = 1, 60
# A free slot takes a request with the next step. One that has waited so long lacks memory, and free slots do not count.
STUCK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Caps:
    """The most that clients' requests may take together; None for no limit."""

    max_requests: int | None = None  # held at once, those whose bodies are still read included
    max_queue_size: int | None = None  # requests that wait for a first step, besides those that free slots take
    max_queued_tokens: int | None = None  # of their prompts
    max_open_body_bytes: int | None = None  # of the bodies of all requests
    queue_timeout_s: float | None = None  # from the arrival to the first step
    num_slots: int = 0  # sequences that run at the same time


@dataclass(slots=True, eq=False)
class Place:
    """One request that the process holds."""

    body_bytes: int
    clocks: Sequence[Clock]  # of its sequences, once it has submitted them
    num_tokens: int = field(default=0, init=False)  # of its prompts, once they are known

    @property
    def has_begun(self) -> bool:
        """Whether all its sequences have had a first step."""
        return bool(self.clocks) and all(clock.scheduled_s is not None for clock in self.clocks)

    def is_stuck(self, now_s: float) -> bool:
        """Whether it has waited for longer than a free slot lets it wait."""
        return bool(self.clocks) and now_s - self.clocks[0].submitted_s > STUCK_S


class RequestQueue:
    """The places of one process; belongs to the event loop. Times are of `time.perf_counter`."""

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self._waiting: dict[Place, None] = {}  # in the order of arrival
        self._begun: set[Place] = set()
        self._num_running = self._num_body_bytes = 0
        # Each refused request is expected again, and each that ends makes room for one of them.
        self._num_expected = 0
        self._ends, self._tokens = Speed(), Speed()

    def enter(self, body_bytes: int, clocks: Sequence[Clock]) -> Place:
        """Give a request a place, from what is known before its body is read.

        Raises:
            Overloaded: a cap is reached.
        """
        caps, num_open = self.caps, len(self._waiting) + len(self._begun)
        if caps.max_requests is not None and num_open >= caps.max_requests:
            raise self._refused(Overloaded, num_open, caps.max_requests)
        num_bytes = self._num_body_bytes + body_bytes
        if caps.max_open_body_bytes is not None and num_bytes > caps.max_open_body_bytes:
            raise self._refused(BodyBytesFull, self._num_body_bytes, caps.max_open_body_bytes)
        num_free, queued = self._queued()
        if caps.max_queue_size is not None and len(self._waiting) >= num_free + caps.max_queue_size:
            raise self._refused(QueueFull, len(queued), caps.max_queue_size)
        self._check_tokens(queued, 0)
        place = Place(body_bytes, clocks)
        self._waiting[place] = None
        self._num_body_bytes = num_bytes
        return place

    def add_prompts(self, place: Place, num_tokens: int) -> None:
        """Count the prompts of a request, before its sequences are submitted.

        Raises:
            QueuedTokensFull: others wait, it would have to wait too, and with it too many tokens would.
        """
        _, queued = self._queued()
        if place in queued:
            self._check_tokens([other for other in queued if other is not place], num_tokens)
        place.num_tokens = num_tokens

    def leave(self, place: Place) -> None:
        """Give the place of a request back."""
        self._sweep()
        if place in self._begun:
            self._begun.remove(place)
            self._num_running -= len(place.clocks)
        else:
            del self._waiting[place]
        self._num_body_bytes -= place.body_bytes
        self._num_expected = max(0, self._num_expected - 1)
        self._ends.add(1, time.perf_counter())

    def retry_after_s(self, num_tokens: int = 0) -> int:
        """Return when the last of the expected requests finds a place and so many tokens have begun; in seconds."""
        now_s = time.perf_counter()
        wait_s = max(self._ends.seconds_for(self._num_expected, now_s), self._tokens.seconds_for(num_tokens, now_s))
        return min(MAX_RETRY_S, max(MIN_RETRY_S, math.ceil(wait_s)))

    def _check_tokens(self, queued: Sequence[Place], num_more: int) -> None:
        limit, num_queued = self.caps.max_queued_tokens, sum(place.num_tokens for place in queued)
        if limit is not None and num_queued > 0 and num_queued + max(1, num_more) > limit:
            raise self._refused(QueuedTokensFull, num_queued, limit, num_tokens=num_queued + num_more - limit)

    def _refused(self, kind: type[Overloaded], running: int, limit: int, *, num_tokens: int = 0) -> Overloaded:
        self._num_expected += 1
        return kind(running=running, limit=limit, retry_after_s=self.retry_after_s(num_tokens))

    def _queued(self) -> tuple[int, list[Place]]:
        """Return the number of free slots, and the requests that wait besides those that free slots take."""
        self._sweep()
        now_s = time.perf_counter()
        num_free = max(0, self.caps.num_slots - self._num_running)
        if any(place.is_stuck(now_s) for place in self._waiting):
            num_free = 0
        return num_free, list(self._waiting)[num_free:]

    def _sweep(self) -> None:
        """Find the requests that have begun; the device thread notes it in their clocks."""
        for place in [place for place in self._waiting if place.has_begun]:
            del self._waiting[place]
            self._begun.add(place)
            self._num_running += len(place.clocks)
            self._tokens.add(place.num_tokens, max(clock.scheduled_s or 0.0 for clock in place.clocks))
