"""Match the results of tools in a conversation to their calls, whose ids may be missing or occur twice.

Servers exist whose ids begin anew with each answer, or are empty. A result belongs to the nearest turn before it that
has a call of its id without a result, and within a turn to the first such call.
"""

from collections import deque
from typing import NamedTuple


class OpenCall(NamedTuple):
    """A call that an earlier turn has made."""

    id: str  # its own, or one of nine characters, as Mistral's templates have it
    name: str  # of its function


class OpenCalls:
    """The calls of a conversation so far; each operation takes constant time."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], list[tuple[int, deque[int]]]] = {}  # by key: turns, each with its open calls
        self._last: dict[str, OpenCall] = {}  # by id, with or without a result
        self._calls: list[OpenCall] = []
        self._is_answered: list[bool] = []

    def add(self, turn: int, call_id: str | None, name: str) -> OpenCall:
        """Add a call of a turn, and return it; without an id, a result answers it by its name or its place."""
        number = len(self._calls)
        call = OpenCall(call_id or f"call{number + 1:05}", name)
        self._calls.append(call)
        self._is_answered.append(False)
        self._last[call.id] = call
        unnamed = (("unnamed", name), ("unnamed", "")) if call_id is None else ()
        for key in (("id", call.id), ("name", name), ("any", ""), *unnamed):
            turns = self._open.setdefault(key, [])
            if not turns or turns[-1][0] != turn:
                turns.append((turn, deque()))
            turns[-1][1].append(number)
        return call

    def answer(self, call_id: str | None, name: str | None = None) -> OpenCall | None:
        """Return the call that a result answers, None if there is none.

        Args:
            call_id: that the result names; without one, it answers a call of its name, else any. One that no call has
                is of a call that the client has sent back without its id.
            name: the function that the result names.
        """
        if call_id:
            call = self._take(("id", call_id)) or self._last.get(call_id)
            if call is None and name:
                call = self._take(("unnamed", name))
            return call or self._take(("unnamed", ""))
        if name and (call := self._take(("name", name))) is not None:
            return call
        return self._take(("any", ""))

    def _take(self, key: tuple[str, str]) -> OpenCall | None:
        turns = self._open.get(key, [])
        while turns:
            numbers = turns[-1][1]
            while numbers:
                number = numbers.popleft()
                if not self._is_answered[number]:
                    self._is_answered[number] = True
                    return self._calls[number]
            turns.pop()
        return None
