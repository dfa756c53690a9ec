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

from service.api.work.turns import ANYONE, Turns, WorkOwner

# Each may occupy a processor, which the device thread may need too.
MAX_TEXT_THREADS = 4
# Of grammars that are compiled.
MAX_GRAMMAR_THREADS = 2
# Of answers from stored conversations, whose sizes are not known before they are read.
MAX_STORED = 4
# Of requests with long bodies, whose tokenizing may take seconds and hundreds of megabytes: they have threads of their
# own, so that short requests never wait for them.
MAX_LONG_TEXT_THREADS = 2


class TextThreads:
    """The threads of one process; belongs to the event loop."""

    def __init__(self, yield_to_steps: Callable[[], None] = lambda: None) -> None:
        """Create it; `yield_to_steps` lowers the priority of the thread that calls it."""
        self._yield_to_steps = yield_to_steps
        self.short = Turns(MAX_TEXT_THREADS)
        self.long = Turns(MAX_LONG_TEXT_THREADS)
        self.grammars = Turns(MAX_GRAMMAR_THREADS)
        self.stored = Turns(MAX_STORED)
        self._of_models: dict[str, Turns] = {}
        self._any = anyio.CapacityLimiter(math.inf)

    def of_model(self, key: str) -> Turns:
        """Return the turns of the short texts of a model, whose template may delay only its own requests."""
        for other in [other for other, turns in self._of_models.items() if not turns.num_taken and other != key]:
            if not self._of_models[other].num_waiting:
                del self._of_models[other]
        return self._of_models.setdefault(key, Turns(MAX_TEXT_THREADS))

    async def run[T](
        self, work: Callable[[], T], *, client: WorkOwner = ANYONE, is_long: bool = False, turns: Turns | None = None
    ) -> T:
        """Return the result of work in a thread that counts until it ends, and not until nothing awaits it any more.

        Args:
            work: what to do; what it raises is raised.
            client: whom it is for.
            is_long: whether it may take long, so that it yields to the steps of others.
            turns: bounds how much such work is done at the same time; None: `long` or `short`.
        """
        loop = asyncio.get_running_loop()
        turns = turns or (self.long if is_long else self.short)
        turn = await turns.take(client)
        unclaimed = [work]  # `pop` is atomic: either the thread begins, or a cancellation was before it

        def run() -> T:
            claimed = unclaimed.pop()
            try:
                return claimed()
            except Exception:
                raise
            except BaseException as panic:  # of a native library; a task that awaits it takes it for its own end
                raise RuntimeError("a native library panicked") from panic
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(turns.give_back, turn)

        try:
            if is_long:
                return await self._run_in_own_thread(run)
            return await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._any)
        except asyncio.CancelledError:
            with contextlib.suppress(IndexError):
                unclaimed.pop()
                turns.give_back(turn)
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
