"""Places for work, which clients take in turn: next comes who has had the least time by its weight.

A client that has much to do delays others by no more than what it has begun, and while there are two places or more it
never takes the last one.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol


class WorkOwner(Protocol):
    """Whom work is for."""

    @property
    def name(self) -> str:
        """What distinguishes it from others."""
        ...

    @property
    def weight(self) -> float:
        """Its share, relative to those of others; more than 0."""
        ...


class Anyone(NamedTuple):
    """The client of work that is nobody's in particular."""

    name: str = ""
    weight: float = 1.0


ANYONE = Anyone()


class Turn:
    """One place, taken."""

    __slots__ = ("begin_s", "client")

    def __init__(self, client: WorkOwner, begin_s: float) -> None:
        self.client, self.begin_s = client, begin_s


class Turns:
    """A number of places; belongs to the event loop."""

    def __init__(self, num_places: int) -> None:
        self._num_places, self._most_of_one = num_places, max(1, num_places - 1)
        self._taken: set[Turn] = set()
        self._num_taken = Counter[str]()  # by client
        # Of clients that have a place or wait for one: in the order of arrival, and the seconds by weight so far.
        self._waiting: dict[str, deque[tuple[WorkOwner, asyncio.Future[Turn]]]] = {}
        self._had_s: dict[str, float] = {}

    @property
    def num_taken(self) -> int:
        """How many places are taken."""
        return len(self._taken)

    @property
    def num_waiting(self) -> int:
        """How many wait for one."""
        return sum(map(len, self._waiting.values()))

    async def take(self, client: WorkOwner) -> Turn:
        """Return a place of the client's, once it is its turn."""
        self._had_s.setdefault(client.name, min(self._had_s.values(), default=0.0))
        taken = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client.name, deque()).append((client, taken))
        self._give()
        try:
            return await taken
        except asyncio.CancelledError:
            if taken.cancelled():
                self._leave(client, taken)
            else:  # it was given in the same moment
                self.give_back(taken.result())
            raise

    @contextlib.asynccontextmanager
    async def held(self, client: WorkOwner) -> AsyncGenerator[None]:
        """Hold a place of the client's within the context, once it is its turn."""
        turn = await self.take(client)
        try:
            yield
        finally:
            self.give_back(turn)

    def give_back(self, turn: Turn) -> None:
        """Let the next one have the place."""
        name = turn.client.name
        self._taken.remove(turn)
        self._num_taken[name] -= 1
        self._had_s[name] += (asyncio.get_running_loop().time() - turn.begin_s) / turn.client.weight
        self._forget(name)
        self._give()

    def _leave(self, client: WorkOwner, taken: asyncio.Future[Turn]) -> None:
        waiting = self._waiting.get(client.name, ())
        if (client, taken) in waiting:
            self._waiting[client.name].remove((client, taken))
        self._forget(client.name)

    def _give(self) -> None:
        now_s = asyncio.get_running_loop().time()
        while len(self._taken) < self._num_places:
            names = [
                name for name, waiting in self._waiting.items() if waiting and self._num_taken[name] < self._most_of_one
            ]
            if not names:
                return
            # Defends against T44.
            name = min(names, key=lambda name: self._so_far_s(name, now_s)) if len(names) > 1 else names[0]
            client, taken = self._waiting[name].popleft()
            if taken.cancelled():
                self._forget(name)
                continue
            turn = Turn(client, now_s)
            self._taken.add(turn)
            self._num_taken[name] += 1
            taken.set_result(turn)

    def _so_far_s(self, name: str, now_s: float) -> float:
        """Return the time that a client has had, what it has begun included."""
        begun = (turn for turn in self._taken if turn.client.name == name)
        return self._had_s[name] + sum((now_s - turn.begin_s) / turn.client.weight for turn in begun)

    def _forget(self, name: str) -> None:
        if not self._num_taken[name] and not self._waiting.get(name):
            self._waiting.pop(name, None)
            self._had_s.pop(name, None)
            del self._num_taken[name]
