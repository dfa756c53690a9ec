"""Admit long bodies one at a time, and rest between them so that other requests keep their speed.

The work takes a processor, which the steps of others may need, and each body that is read takes time of this process.
Whoever sends such bodies all the time must not slow down others.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from service.api.work.turns import ANYONE, Turns, WorkOwner

# A shorter body is worked on at once: passing it to another process takes as long, or little less.
SHORT_BODY_BYTES = 32 * 1024
# While requests run, the next body waits this many times as long as the work on one took.
RESTS = 9.0
NUM_MEASURED = 32  # bodies, the latest ones


class LongWork:
    """The turns of one process; belongs to the event loop."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        """Create it; `is_busy` returns whether other requests run."""
        self.turn = Turns(1)  # which the next body waits for
        self._is_busy = is_busy
        self.charged_s = 0.0  # of a processor, which the next turn waits in proportion to
        self._turns_s = deque[float](maxlen=NUM_MEASURED)

    @property
    def body_s(self) -> float:
        """How long one body has taken lately, with its rest; 0 before there was one."""
        return sum(self._turns_s) / max(1, len(self._turns_s))

    async def begin[T](self, work: Callable[[], Awaitable[T]], client: WorkOwner = ANYONE) -> T:
        """Return the result of the first work on a client's body, once its turn has come; raises what it raises."""
        loop, turn = asyncio.get_running_loop(), await self.turn.take(client)
        begin_s = loop.time()
        try:
            return await work()
        finally:
            seconds, self.charged_s = self.charged_s, 0.0
            rest_s = RESTS * seconds if self._is_busy() else 0.0
            self._turns_s.append(loop.time() - begin_s + rest_s)
            loop.call_later(rest_s, self.turn.give_back, turn)

    def charge(self, seconds: float) -> None:
        """Charge seconds of a processor to the turn that is on, or else to the next one."""
        self.charged_s += seconds
