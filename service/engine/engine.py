"""The engine's public side: submit a request, read its stream."""

import asyncio
from collections.abc import Callable, Iterable

from service.engine.device_thread import Abort, DeviceThread, Submission
from service.engine.loop import Loop, StepRunner
from service.engine.request import Generation, Request, TokenStream
from service.engine.schedule.device_turns import DeviceTurns
from service.engine.schedule.scheduler import Scheduler
from service.engine.schedule.speculation import Speculation
from service.engine.shapes import EngineShapes
from service.errors import Overloaded
from service.observability.model_metrics import ModelMetrics


class Engine(DeviceThread):
    """Continues sequences of token ids."""

    def __init__(
        self,
        runner: StepRunner,
        shapes: EngineShapes,
        metrics: ModelMetrics,
        *,
        max_requests: int,
        max_stall_s: float | None = None,
        on_failure: Callable[[], None] = lambda: None,
        turns: DeviceTurns | None = None,
        number: int = 0,
        speculation: Speculation | None = None,
    ) -> None:
        """Connect a runner with a scheduler.

        Args:
            runner: the device side.
            shapes: the sizes that the runner was compiled for.
            metrics: updated by the device thread.
            max_requests: the most requests of clients that may be open at once, waiting ones included.
            max_stall_s: how long prompts may hold up the sequences that decode; None for two decode steps.
            on_failure: called on the device thread after it failed; the process should end then.
            turns: the turns of the engines that share the devices; None if this is the only engine.
            number: among the engines with the same weights.
            speculation: drafts tokens; None if nothing is drafted.
        """
        self.shapes, self.number = shapes, number
        self.runner = runner
        self._max_requests = max_requests
        self._scheduler = Scheduler.of(shapes, max_stall_s, speculation)
        super().__init__(Loop(self._scheduler, runner, metrics, (turns or DeviceTurns()).join(), number), on_failure)
        self._background: set[str] = set()  # the open requests of batches

    def submit(self, request: Request) -> TokenStream:
        """Submit a request; called on the event loop that reads the stream.

        Raises:
            Overloaded: `max_requests` requests of clients are open, and this is one more.
            EngineStopped: the device thread has ended.
        """
        num_clients = len(self._open) - len(self._background)
        if num_clients >= self._max_requests and not request.is_background:
            raise Overloaded(running=num_clients, limit=self._max_requests)
        stream = TokenStream(
            asyncio.get_running_loop(),
            abort=lambda: self._inbox.put(Abort(request.id)),
            on_end=lambda: self._forget(request.id),
        )
        self._send(request.id, Submission(request, stream))
        if request.is_background:
            self._background.add(request.id)
        return stream

    def generate(self, requests: Iterable[Request]) -> list[Generation]:
        """Run requests to their ends, concurrently, and return their results in order. Blocks, so it is for scripts.

        Raises:
            Overloaded: there are more requests than `max_requests`.
            EngineError: the engine failed.
        """

        async def read(stream: TokenStream) -> Generation:
            token_ids: list[int] = []
            reason = None
            async for event in stream:
                token_ids += event.token_ids
                reason = event.finish_reason
            return Generation(tuple(token_ids), reason)

        async def read_all() -> list[Generation]:
            return await asyncio.gather(*[read(stream) for stream in [self.submit(request) for request in requests]])

        return asyncio.run(read_all())

    def num_cached(self, keys: Iterable[bytes]) -> int:
        """Return how many of a prompt's first tokens are cached, as a hint: the device thread goes on meanwhile.

        Args:
            keys: those of `prompt_keys`.
        """
        return self._scheduler.num_cached(keys)

    def check_integrity(self) -> None:
        """Check that no page and no slot was lost; only after `stop`, since the device thread owns them before.

        Raises:
            PageIntegrityError: a page was lost.
        """
        self._scheduler.check_integrity()

    def _forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._background.discard(request_id)
