"""Work on long bodies that holds the interpreter: one body at a time, with rests for everybody else.

Parsing and rendering hold the interpreter for up to a tenth of a second, in which neither the event loop nor the device
thread goes on. Whoever sends such bodies all the time must not slow down others.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

import anyio
import anyio.to_thread

# A shorter body is worked on at once: passing it to a thread takes as long, or little less.
SHORT_BODY_BYTES = 32 * 1024
# While requests run, the next body waits for so many times as long as the work on one took, which thus takes a tenth of
# the time.
RESTS = 9.0
NUM_MEASURED = 32  # bodies, the latest ones


class LongWork:
    """Does the work on one body at a time; belongs to the event loop."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        """Create it; `is_busy` tells whether others run, whom a rest helps."""
        self.turn = anyio.CapacityLimiter(1)  # which the next body waits for
        self._threads = anyio.CapacityLimiter(1)
        self._is_busy = is_busy
        self._later_s = 0.0  # work on bodies after their turns, which the next turn has yet to wait for
        self._turns_s = deque[float](maxlen=NUM_MEASURED)

    @property
    def body_s(self) -> float:
        """How long one body has taken lately, with its rest; 0 before there was one."""
        return sum(self._turns_s) / max(1, len(self._turns_s))

    async def begin[T](self, work: Callable[[], T]) -> T:
        """Return the result of the first work on a body, once its turn has come; raises what it raises."""
        turn, loop = object(), asyncio.get_running_loop()
        await self.turn.acquire_on_behalf_of(turn)
        try:
            return await self.go_on(work)
        finally:
            seconds, self._later_s = self._later_s, 0.0
            rest_s = RESTS * seconds if self._is_busy() else 0.0
            self._turns_s.append(seconds + rest_s)
            loop.call_later(rest_s, self.turn.release_on_behalf_of, turn)

    async def go_on[T](self, work: Callable[[], T]) -> T:
        """Return the result of further work on a body, which the next body waits for; raises what it raises."""
        seconds = 0.0

        def run() -> T:
            nonlocal seconds
            begin_s = time.thread_time()
            try:
                return work()
            finally:
                seconds = time.thread_time() - begin_s

        try:
            return await anyio.to_thread.run_sync(run, limiter=self._threads)
        finally:
            self._later_s += seconds
