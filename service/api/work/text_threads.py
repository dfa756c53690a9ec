"""The threads in which requests are tokenized and rendered, and large answers written."""

import asyncio
import contextlib
import contextvars
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future

import anyio
import anyio.to_thread

# Each may occupy a processor, which the device thread may need too.
MAX_TEXT_THREADS = 4
# Of requests with long bodies, whose tokenizing may take seconds and hundreds of megabytes: they have threads of their
# own, so that short requests never wait for them.
MAX_LONG_TEXT_THREADS = 2


class TextThreads:
    """The threads of one process; belongs to the event loop."""

    def __init__(self, yield_to_steps: Callable[[], None] = lambda: None) -> None:
        """Create it; `yield_to_steps` lowers the priority of the thread that calls it."""
        self._yield_to_steps = yield_to_steps
        self.short = anyio.CapacityLimiter(MAX_TEXT_THREADS)
        self.long = anyio.CapacityLimiter(MAX_LONG_TEXT_THREADS)
        self._any = anyio.CapacityLimiter(math.inf)

    async def run[T](
        self, work: Callable[[], T], *, is_long: bool = False, limiter: anyio.CapacityLimiter | None = None
    ) -> T:
        """Return the result of work in a thread that counts until it ends, and not until nothing awaits it any more.

        Args:
            work: what to do; what it raises is raised.
            is_long: whether it may take long, so that it yields to the steps of others.
            limiter: bounds how much such work is done at the same time; None: `long` or `short`.
        """
        thread, loop = object(), asyncio.get_running_loop()
        limiter = limiter or (self.long if is_long else self.short)
        await limiter.acquire_on_behalf_of(thread)
        unclaimed = [work]  # `pop` is atomic: either the thread begins, or a cancellation was before it

        def run() -> T:
            claimed = unclaimed.pop()
            try:
                return claimed()
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(limiter.release_on_behalf_of, thread)

        try:
            if is_long:
                return await self._run_in_own_thread(run)
            return await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._any)
        except asyncio.CancelledError:
            with contextlib.suppress(IndexError):
                unclaimed.pop()
                limiter.release_on_behalf_of(thread)
            raise

    async def _run_in_own_thread[T](self, work: Callable[[], T]) -> T:
        """Return the result of work in a thread of low priority, which no later work could raise again."""
        outcome, context = Future[T](), contextvars.copy_context()

        def run() -> None:
            self._yield_to_steps()
            try:
                outcome.set_result(context.run(work))
            except BaseException as error:  # for the task that awaits it
                outcome.set_exception(error)

        outcome.set_running_or_notify_cancel()  # from here on, a cancellation leaves the thread alone
        threading.Thread(target=run, name="long text", daemon=True).start()
        return await asyncio.wrap_future(outcome)
