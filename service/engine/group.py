"""Several engines with the same weights on devices of their own, behind the public side of one (data parallel).

Each engine has a device thread, a scheduler and a cache of prefixes. A failed or hung one ends its own requests only,
and another takes its place.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import tee
from operator import itemgetter
from typing import Protocol

from service.engine.engine import Engine
from service.engine.request import Request, Sampling, TokenStream
from service.engine.schedule.pages import prompt_keys
from service.errors import EngineStopped, ServiceError

logger = logging.getLogger(__name__)

# An open request weighs as much as these tokens of a prompt that are not cached. So conversations stay with
# their engine, while a short prefix that all requests share does not keep the others idle.
TOKENS_OF_OPEN_REQUEST = 32
CHECKS_PER_LIMIT, MAX_INTERVAL_S = 20, 1.0
STOPPED = "The engine of this request has stopped; another takes its place. Try again."


class MakeEngine(Protocol):
    """Makes engines with the weights of one model."""

    def __call__(self, number: int, on_failure: Callable[[], None]) -> Engine:
        """Return an engine that has not started.

        Args:
            number: whose devices it has; the engine that had them before has stopped.
            on_failure: called on its device thread after it failed.
        """
        ...


class EngineGroup:
    """Hands each request to one of its engines."""

    def __init__(
        self, size: int, make: MakeEngine, on_failure: Callable[[], None], *, max_step_s: float | None = None
    ) -> None:
        """Make the engines.

        Args:
            size: the number of engines.
            make: makes one.
            on_failure: called once no engine is left; the process should end then.
            max_step_s: how long a step may take before its engine counts as hung; None for any time.
        """
        self._make, self._on_failure, self._max_step_s = make, on_failure, max_step_s
        self._lock = threading.Lock()
        self._is_stopping = False
        self._num_replacing = 0
        self._first_answer_s: float | None = None
        self._num_submitted: Counter[int] = Counter()  # by engine; where all else is equal, their caches fill alike
        self._engines: dict[int, Engine] = {number: self._made(number) for number in range(size)}

    @property
    def engines(self) -> Sequence[Engine]:
        """The engines that take requests."""
        return list(self._engines.values())

    @property
    def is_live(self) -> bool:
        """Whether requests can be answered, or will be once an engine has been replaced."""
        return any(engine.is_live for engine in self.engines) or self._num_replacing > 0

    @property
    def first_answer_s(self) -> float | None:
        """The time of the first token of any engine, on the clock of `time.monotonic`; None before it."""
        if self._first_answer_s is None:
            times = [engine.first_answer_s for engine in self.engines]
            self._first_answer_s = min((time_s for time_s in times if time_s is not None), default=None)
        return self._first_answer_s

    @property
    def step_wait_s(self) -> float:
        """0: the group looks after hung steps itself."""
        return 0.0

    @property
    def num_open(self) -> int:
        """The number of requests that have not ended."""
        return sum(engine.num_open for engine in self.engines)

    def start(self) -> None:
        """Start the device threads."""
        for engine in self.engines:
            engine.start()
        if self._max_step_s is not None:
            threading.Thread(target=self._watch, args=(self._max_step_s,), name="engines", daemon=True).start()

    def submit(self, request: Request) -> TokenStream:
        """Submit a request to an engine with a free slot, if there is one, that has least to do before its first token.

        Raises:
            Overloaded: as `Engine.submit`.
            EngineStopped: no engine is live.
        """
        engines = [engine for engine in self.engines if engine.is_live]
        if not engines:
            raise EngineStopped(STOPPED)
        if len(engines) == 1:
            return engines[0].submit(request)

        def work(engine: Engine, keys: Iterable[bytes]) -> tuple[bool, int, int]:
            num_open = engine.num_open
            weight = TOKENS_OF_OPEN_REQUEST * num_open - engine.num_cached(keys)
            return num_open >= engine.shapes.num_slots, weight, self._num_submitted[engine.number]

        # A key is computed once, for the first engine that asks for it.
        keys = tee(prompt_keys(request, engines[0].shapes.page_size), len(engines))
        _, engine = min(((work(*pair), pair[0]) for pair in zip(engines, keys, strict=True)), key=itemgetter(0))
        stream = engine.submit(request)
        self._num_submitted[engine.number] += 1
        return stream

    def cut(self, make_error: Callable[[], ServiceError]) -> None:
        """End every open request with an error of its own; called on the event loop."""
        for engine in self.engines:
            engine.cut(make_error)

    def stop(self, timeout_s: float | None = None) -> None:
        """End the device threads and wait for that, for so long at most."""
        self._is_stopping = True
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        engines = self.engines
        for engine in engines:
            engine.begin_stop()
        for engine in engines:
            engine.stop(None if end_s is None else max(0.0, end_s - time.monotonic()))

    def check_integrity(self) -> None:
        """Check that no page and no slot was lost; see `Engine.check_integrity`."""
        for engine in self.engines:
            engine.check_integrity()

    def _made(self, number: int) -> Engine:
        engine = self._make(number, lambda: self._replace(number, engine, "failed"))
        return engine

    def _watch(self, max_step_s: float) -> None:
        while not self._is_stopping:
            time.sleep(min(MAX_INTERVAL_S, max_step_s / CHECKS_PER_LIMIT))
            for number, engine in list(self._engines.items()):
                if engine.step_wait_s >= max_step_s:
                    self._replace(number, engine, "hangs")

    def _replace(self, number: int, engine: Engine, what: str) -> None:
        """Take an engine out, end its requests, and start another on its devices."""
        with self._lock:
            if self._is_stopping or self._engines.get(number) is not engine:
                return
            del self._engines[number]
            self._num_replacing += 1
        logger.error(
            "engine %d %s; its requests end, and another takes its place", number, what, extra={"engine": number}
        )
        engine.abandon(EngineStopped(STOPPED))
        threading.Thread(target=self._start_another, args=(number,), name="engine", daemon=True).start()

    def _start_another(self, number: int) -> None:
        begin_s = time.monotonic()
        try:
            engine = self._made(number)
            engine.start()
            asyncio.run(self._probe(engine))
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            logger.critical(
                "engine %d cannot be replaced; the others go on", number, extra={"engine": number, "reason": reason}
            )
            with self._lock:
                self._num_replacing -= 1
                is_last = not self._engines and not self._num_replacing
            if is_last and not self._is_stopping:
                self._on_failure()
            return
        with self._lock:
            self._engines[number] = engine
            self._num_replacing -= 1
        if self._is_stopping:
            engine.begin_stop()
        elif not engine.is_live:  # it failed between its first token and its place in the group
            self._replace(number, engine, "failed")
            return
        seconds = round(time.monotonic() - begin_s, 3)
        logger.info("engine %d was replaced", number, extra={"engine": number, "seconds": seconds})

    async def _probe(self, engine: Engine) -> None:
        """Generate a token, before clients' requests arrive."""
        async with asyncio.timeout(self._max_step_s):
            async for _ in engine.submit(Request("probe", (0,), 1, Sampling(temperature=0.0))):
                pass
