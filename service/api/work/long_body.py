"""Long bodies: parsed, and made into prompts, in a process of their own.

Parsing and rendering hold the interpreter for up to a fifth of a second, in which neither the event loop nor the device
thread would go on; and a process can be killed when its client has left. A body names its model, so it is parsed first,
and its prompt is made once the model is there. What comes back is small: a body without what only its prompt needs, and
token ids.
"""

import asyncio
from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from service.api.schema.wire import WireObject, parse, parse_light
from service.api.work.long_work import LongWork
from service.api.work.text_threads import TextThreads
from service.api.work.turns import ANYONE, Turns, WorkOwner
from service.errors import BodyTooLaborious
from service.text.prompt_model import PromptModel
from service.worker.process import MEBIBYTE, WorkerProcess

PROCESSOR_S = 30.0  # for one call
# Of memory: the interpreter, and a body as the largest structure and the most tokens that it can have.
BASE_BYTES, BYTES_PER_BODY_BYTE = 768 * MEBIBYTE, 256
BYTES_PER_IMAGE_BODY_BYTE = 32  # of a body that is mostly base64: copies of it, and lists of numbers at worst
# After its client has left, a call may go on for as long as a new process would take to start.
GRACE_S = 1.0
IDLE_S = 60.0  # until a process without calls is ended
MAX_MODELS = 8  # of one process, each with its tokenizer


class LongBody(NamedTuple):
    """A body as it was sent."""

    kind: type[WireObject]
    content: bytes


class LongBodies:
    """Works on one body at a time; belongs to the event loop."""

    def __init__(
        self, turns: LongWork, threads: TextThreads, *, max_body_bytes: int, max_image_body_bytes: int = 0
    ) -> None:
        """Start nothing yet.

        Args:
            turns: when the next body's turn is.
            threads: where the answers of the process are waited for.
            max_body_bytes: the longest body without images.
            max_image_body_bytes: the longest one with images.
        """
        self.process = WorkerProcess(
            failure=BodyTooLaborious,
            memory_bytes=BASE_BYTES
            + BYTES_PER_BODY_BYTE * max_body_bytes
            + BYTES_PER_IMAGE_BODY_BYTE * max_image_body_bytes,
            processor_s=PROCESSOR_S,
        )
        self._turns, self._threads = turns, threads
        self._free = Turns(1)
        self._idle: asyncio.TimerHandle | None = None
        self._sent: tuple[int, set[str]] = (0, set())  # the keys of the models that the process has, by its number

    async def read(self, body: LongBody, client: WorkOwner = ANYONE) -> Any:
        """Return the checked object of a client's body, without what only its prompts need, once its turn has come.

        Raises:
            RequestError: as `parse` does.
            BodyTooLaborious: it takes too much time or memory.
        """
        return await self._turns.begin(lambda: self._call(client, partial(parse_light, body.kind), _read, body), client)

    async def make(self, body: LongBody, function: Callable[[LongBody], bytes], client: WorkOwner = ANYONE) -> bytes:
        """Run a module's function on a parsed body in the worker process and return its result.

        Raises:
            BodyTooLaborious: it takes too much time or memory.
        """
        return await self._call(client, bytes, function, body)

    async def run(self, function: Callable[[], bytes], client: WorkOwner = ANYONE) -> bytes:
        """Return the result of a function of a module, or a partial one, that works on other text than a body.

        Raises:
            RequestError: what the function raises.
            BodyTooLaborious: it takes too much time or memory.
        """
        return await self._call(client, bytes, function, is_charged=False)

    async def prompt[T](
        self,
        body: LongBody,
        function: Callable[[Any, PromptModel], T],
        model: PromptModel,
        client: WorkOwner = ANYONE,
    ) -> T:
        """Return what a function of a module makes of the complete object of a body that has been read, and a model.

        Raises:
            RequestError: what the function raises.
            BodyTooLaborious: it takes too much time or memory.
        """
        return await self._call(
            client, partial(_read_result, function), _prompt, body, function, model.key, model=model
        )

    async def of_model[T](
        self,
        function: "Callable[..., T]",
        model: PromptModel,
        *arguments: Any,
        client: WorkOwner = ANYONE,
    ) -> T:
        """Return what a function of a module makes of a model and arguments, however short the body is.

        Raises:
            RequestError: what the function raises.
            BodyTooLaborious: it takes too much time or memory.
        """
        read = partial(_read_result, function)
        return await self._call(client, read, _of_model, function, model.key, *arguments, model=model, is_charged=False)

    async def _call[T](
        self,
        client: WorkOwner,
        read: Callable[[bytes], T],
        function: Callable[..., bytes],
        *arguments: Any,
        model: PromptModel | None = None,
        is_charged: bool = True,
    ) -> T:
        """Return what `read` makes of the result of a function in the process, to which the model is sent first.

        The process is killed if the call still runs a moment after this was cancelled. Work that is not
        charged is none on a body, and no other body waits in proportion to it.
        """
        loop, is_running = asyncio.get_running_loop(), False

        def work() -> T:
            nonlocal is_running
            is_running = True
            try:
                if model is not None:
                    self._send(model)
                answer = self.process.call(function, *arguments)
                if is_charged:
                    loop.call_soon_threadsafe(self._turns.charge, answer.processor_s)
                return read(bytes(answer.content))
            finally:
                is_running = False

        def end_if_running() -> None:
            if is_running:
                self.process.end()

        try:
            return await self._threads.run(work, is_long=True, client=client, turns=self._free)
        except asyncio.CancelledError:
            loop.call_later(GRACE_S, end_if_running)
            raise
        finally:
            if self._idle is not None:
                self._idle.cancel()
            self._idle = loop.call_later(IDLE_S, self._end_if_idle)

    def _send(self, model: PromptModel) -> None:
        """Send the model to the process unless it has it."""
        self.process.start()
        if self._sent[0] != self.process.num_starts:
            self._sent = (self.process.num_starts, set())
        keys = self._sent[1]
        if model.key in keys:
            return
        if len(keys) == MAX_MODELS:
            self.process.end()
            self._send(model)
            return
        self.process.call(_keep, model)
        keys.add(model.key)

    def _end_if_idle(self) -> None:
        if not self._free.num_taken:
            self.process.end()


@cache
def _json_of(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _result_type(function: Callable[..., Any]) -> Any:
    """Return the type that a function, or a partial one, states to return."""
    while isinstance(function, partial):
        function = function.func
    return signature(function).return_annotation


def _written_result(function: Callable[..., Any], result: Any) -> bytes:
    return result if isinstance(result, bytes) else _json_of(_result_type(function)).dump_json(result)


def _read_result(function: Callable[..., Any], content: bytes) -> Any:
    return content if (kind := _result_type(function)) is bytes else _json_of(kind).validate_json(content)


# The state of the process.
_latest: list[tuple[LongBody, WireObject]] = []  # the body that was read last, whose prompts are mostly wanted next
_models: dict[str, PromptModel] = {}


def _read(body: LongBody) -> bytes:
    return _parsed(body).light_json()


def _keep(model: PromptModel) -> bytes:
    _models[model.key] = model
    return b""


def _prompt(body: LongBody, function: Callable[[Any, PromptModel], Any], key: str) -> bytes:
    return _written_result(function, function(_parsed(body), _models[key]))


def _of_model(function: Callable[..., Any], key: str, *arguments: Any) -> bytes:
    return _written_result(function, function(_models[key], *arguments))


def _parsed(body: LongBody) -> WireObject:
    if not _latest or _latest[0][0] != body:
        _latest.clear()  # which frees the memory first
        _latest.append((body, parse(body.kind, body.content)))
    return _latest[0][1]
