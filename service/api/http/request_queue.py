"""Admission control: the requests in the process, counted against caps on requests, tokens and bytes.

First come, first served, except that a key refused below its fair share comes first; see `Shares`.
"""

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.api.http.keys import NO_KEY, ApiKey
from service.api.http.shares import Shares
from service.api.work.long_work import SHORT_BODY_BYTES, LongWork
from service.errors import BodyBytesFull, LongBodiesFull, Overloaded, QueuedTokensFull, QueueFull
from service.observability.clock import Clock

MIN_RETRY_S, MAX_RETRY_S = 1, 60
# A free slot takes a request with the next step. One that has waited so long lacks memory, and free slots do not count.
STUCK_S = 1.0
# Long bodies that come when the work on those before them will take longer are refused.
MAX_LONG_WORK_S = 30.0
NUM_MEASURED = 32  # departures, the latest ones


@dataclass(frozen=True, kw_only=True)
class Caps:
    """The most that clients' requests may take together; None for no limit."""

    max_requests: int | None = None  # held at once, those whose bodies are still read included
    max_queue_size: int | None = None  # requests that wait for a first step, besides those that free slots take
    max_queued_tokens: int | None = None  # of their prompts
    max_open_body_bytes: int | None = None  # of the bodies of all requests
    queue_timeout_s: float | None = None  # from the arrival to the first step
    num_slots: Callable[[], int] = lambda: 0  # returns how many sequences run at the same time


@dataclass(slots=True, eq=False)
class Place:
    """One request that the process holds."""

    key: str  # the name of its API key
    body_bytes: int
    clocks: Sequence[Clock]  # of its sequences, once it has submitted them
    num_tokens: int = field(default=0, init=False)  # of its prompts, once they are known
    is_long: bool = field(init=False)  # whether its body is worked on in turn with others

    def __post_init__(self) -> None:
        self.is_long = self.body_bytes > SHORT_BODY_BYTES

    @property
    def has_begun(self) -> bool:
        """Whether all its sequences have had a first step."""
        return bool(self.clocks) and all(clock.scheduled_s is not None for clock in self.clocks)

    def is_stuck(self, now_s: float) -> bool:
        """Whether it has waited for longer than a free slot lets it wait."""
        return bool(self.clocks) and now_s - self.clocks[0].submitted_s > STUCK_S


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


class RequestQueue:
    """The places of one process; belongs to the event loop. Times are of `time.perf_counter`."""

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.long_work = LongWork(self.has_running)
        self._waiting: dict[Place, None] = {}  # in the order of arrival
        self._begun: set[Place] = set()
        self._num_running = 0
        self._num_open, self._num_body_bytes = Counter[str](), Counter[str]()  # by key
        self._weights: dict[str, float] = {}  # of every key so far
        self._shares: defaultdict[type[Overloaded], Shares] = defaultdict(Shares)
        # Each refused request is expected again, and each that ends makes room for one of them.
        self._num_expected = 0
        self._ends, self._tokens = Speed(), Speed()

    def enter(self, body_bytes: int, clocks: Sequence[Clock], key: ApiKey = NO_KEY, *, is_json: bool = True) -> Place:
        """Give a request a place, from what is known before its body is read.

        Raises:
            Overloaded: a cap is reached, or what is free is for keys that have less than their share.
        """
        caps = self.caps
        self._weights[key.name] = key.weight
        self._check(Overloaded, key.name, 1, self._num_open, caps.max_requests)
        self._check(BodyBytesFull, key.name, body_bytes, self._num_body_bytes, caps.max_open_body_bytes)
        if is_json and body_bytes > SHORT_BODY_BYTES:
            self._check_long(key.name)
        if (caps.max_queue_size, caps.max_queued_tokens) != (None, None):  # else skip the O(n) scan
            num_free, queued = self._queued()
            if caps.max_queue_size is not None:
                waiting = Counter(place.key for place in self._waiting)
                self._check(QueueFull, key.name, 1, waiting, caps.max_queue_size, num_more=num_free)
            self._check_tokens(key.name, queued, 1)
        place = Place(key.name, body_bytes, clocks)
        place.is_long &= is_json
        self._waiting[place] = None
        self._num_open[key.name] += 1
        self._num_body_bytes[key.name] += body_bytes
        return place

    def add_prompts(self, place: Place, num_tokens: int) -> None:
        """Count the prompts of a request, before its sequences are submitted.

        Raises:
            QueuedTokensFull: others wait, it would have to wait too, and with it too many tokens would.
        """
        if self.caps.max_queued_tokens is not None:
            _, queued = self._queued()
            if place in queued:
                self._check_tokens(place.key, [other for other in queued if other is not place], num_tokens)
        place.num_tokens = num_tokens

    def hold(self, place: Place, num_bytes: int) -> None:
        """Count other bytes than those of a request's body, which it does not hold any more.

        Raises:
            BodyBytesFull: there is no room for them.
        """
        self._num_body_bytes[place.key] -= place.body_bytes
        place.body_bytes = 0
        self._check(BodyBytesFull, place.key, num_bytes, self._num_body_bytes, self.caps.max_open_body_bytes)
        place.body_bytes = num_bytes
        self._num_body_bytes[place.key] += num_bytes

    def leave(self, place: Place) -> None:
        """Give the place of a request back."""
        if place in self._waiting and place.has_begun:
            self._begin(place)
        if place in self._begun:
            self._begun.remove(place)
            self._num_running -= len(place.clocks)
        else:
            del self._waiting[place]
        self._num_open[place.key] -= 1
        self._num_body_bytes[place.key] -= place.body_bytes
        self._num_expected = max(0, self._num_expected - 1)
        self._ends.add(1, time.perf_counter())

    def has_running(self) -> bool:
        """Return whether a request has begun and not ended."""
        self._sweep()
        return bool(self._begun)

    def retry_after_s(self, num_tokens: int = 0, num_long: int = 0) -> int:
        """Return when the last of the expected requests finds a place; in seconds.

        Args:
            num_tokens: have begun by then.
            num_long: bodies have been worked on by then.
        """
        now_s = time.perf_counter()
        wait_s = max(self._ends.seconds_for(self._num_expected, now_s), self._tokens.seconds_for(num_tokens, now_s))
        wait_s = max(wait_s, num_long * self.long_work.body_s)
        return min(MAX_RETRY_S, max(MIN_RETRY_S, math.ceil(wait_s)))

    def _check_long(self, key: str) -> None:
        if body_s := self.long_work.body_s:
            held = Counter(place.key for place in self._waiting if place.is_long and not place.clocks)
            self._check(LongBodiesFull, key, 1, held, max(1, int(MAX_LONG_WORK_S / body_s)))

    def _check_tokens(self, key: str, queued: Sequence[Place], num_more: int) -> None:
        if self.caps.max_queued_tokens is not None:
            held = Counter[str]()
            for place in queued:
                held[place.key] += place.num_tokens
            if held.total():  # a prompt that waits alone may have any length
                self._check(QueuedTokensFull, key, num_more, held, self.caps.max_queued_tokens)

    def _check(
        self, kind: type[Overloaded], key: str, amount: int, held: Counter[str], limit: int | None, *, num_more: int = 0
    ) -> None:
        """Check one cap for a request of a key.

        Args:
            kind: the error of the cap.
            key: the request's API key.
            amount: what it would take.
            held: what the requests of each key have taken.
            limit: the cap; None for none.
            num_more: what may be taken beyond the cap at the moment.

        Raises:
            Overloaded: there is no room for the request.
        """
        if limit is None:
            return
        now_s, shares, total = time.perf_counter(), self._shares[kind], held.total()
        most = limit + num_more
        missing = total + amount + shares.reserved(key, held, self._weights, most, now_s) - most
        if missing <= 0:
            shares.fulfil(key)
            return
        self._num_expected += 1
        num_tokens, num_long = (missing if kind is wanted else 0 for wanted in (QueuedTokensFull, LongBodiesFull))
        retry_after_s = self.retry_after_s(num_tokens, num_long)
        shares.claim(key, amount, now_s + retry_after_s)
        raise kind(running=max(0, total - num_more), limit=limit, retry_after_s=retry_after_s)

    def _queued(self) -> tuple[int, list[Place]]:
        """Return the number of free slots, and the requests that wait besides those that free slots take."""
        self._sweep()
        now_s = time.perf_counter()
        num_free = max(0, self.caps.num_slots() - self._num_running)
        if any(place.is_stuck(now_s) for place in self._waiting):
            num_free = 0
        return num_free, list(self._waiting)[num_free:]

    def _sweep(self) -> None:
        """Find the requests that have begun; the device thread notes it in their clocks."""
        for place in [place for place in self._waiting if place.has_begun]:
            self._begin(place)

    def _begin(self, place: Place) -> None:
        del self._waiting[place]
        self._begun.add(place)
        self._num_running += len(place.clocks)
        self._tokens.add(place.num_tokens, max(clock.scheduled_s or 0.0 for clock in place.clocks))
