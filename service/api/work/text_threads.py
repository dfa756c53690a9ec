"""The threads in which requests are tokenized and rendered, and large answers written."""

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

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
MAX_RESTING = 8

type Inbox = "SimpleQueue[Callable[[Any], None] | None]"  # of a thread; what runs in it is given it


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
        self._resting: list[Inbox] = []  # of threads that wait for work
        weakref.finalize(self, _end, self._resting)

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
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        turns = turns or (self.long if is_long else self.short)
        turn = await turns.take(client)
        made: asyncio.Future[T] = loop.create_future()

        def end(finish: Callable[[], None], inbox: Inbox | None) -> None:
            turns.give_back(turn)
            if inbox is not None:
                self._rest(inbox)
            if not made.done():
                finish()

        def run(inbox: Inbox | None) -> None:
            try:
                finish = partial(made.set_result, context.run(work))
            except BaseException as error:
                finish = partial(made.set_exception, _raised(error))
            try:
                loop.call_soon_threadsafe(end, finish, inbox)
            except RuntimeError:  # the loop is closed
                if inbox is not None:
                    inbox.put(None)
            del finish  # an error refers to this frame

        if is_long:
            threading.Thread(target=self._run_slowly, args=(run,), name="long text", daemon=True).start()
        else:
            self._resting_thread().put(run)
        return await made

    def _run_slowly(self, run: Callable[[None], None]) -> None:
        """Run work in this thread, at a low priority which no later work could raise again."""
        self._yield_to_steps()
        run(None)

    def _resting_thread(self) -> Inbox:
        if self._resting:
            return self._resting.pop()
        inbox: Inbox = SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name="text", daemon=True).start()
        return inbox

    def _rest(self, inbox: Inbox) -> None:
        if len(self._resting) < MAX_RESTING:
            self._resting.append(inbox)
        else:
            inbox.put(None)


def _raised(error: BaseException) -> Exception:
    """Return what a task can be given that awaits work: it would take a native library's panic for its own end."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    bug = RuntimeError(f"work in a thread has raised {type(error).__name__}")
    bug.__cause__ = error
    return bug


def _serve(inbox: Inbox) -> None:
    """Run what arrives, until that is nothing."""
    while (run := inbox.get()) is not None:
        run(inbox)
        del run  # and what it has made


def _end(resting: list[Inbox]) -> None:
    for inbox in resting:
        inbox.put(None)
