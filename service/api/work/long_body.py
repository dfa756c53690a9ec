"""Long bodies: parsed, and made into prompts, in a process of their own, whose functions are here too.

Parsing and rendering hold the interpreter for up to a fifth of a second, in which neither the event loop nor the device
thread would go on; and a process can be killed when its client has left. What comes back is small: a body without what
only its prompts need, and token ids.
"""

import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import anyio.to_thread

from service.api.schema.wire import WireObject, parse
from service.api.work.long_work import LongWork
from service.api.work.work_process import WorkProcess
from service.errors import ServiceError
from service.text.prompt_model import PromptModel

MAX_MODELS = 8  # whose tokenizers and templates the process keeps, the latest ones
MAX_TRIES = 3  # of a call whose model the process does not have any more when it begins
# The scope's entry for the request's body if it is long: a list of at most one.
LONG_BODY = "levserve.long_body"


class LongBody(NamedTuple):
    """A body as it was sent."""

    kind: type[WireObject]
    content: bytes


class ModelMissing(ServiceError):
    """The process has not been sent the model, or has forgotten it."""


class LongBodies:
    """Works on one body at a time; belongs to the event loop."""

    def __init__(self, turns: LongWork, process: WorkProcess) -> None:
        """Create it.

        Args:
            turns: when the next body's turn is.
            process: where the work is done.
        """
        self._turns, self.process = turns, process

    async def read(self, body: LongBody) -> Any:
        """Return the checked object of a body, without what only its prompts need, once its turn has come.

        Raises:
            RequestError: as `parse` does.
            BodyTooLaborious: it takes too much time or memory.
        """
        return await self._turns.begin(lambda note: self.process.call(note, _read, body))

    async def convert[T: WireObject](self, body: LongBody, function: Callable[[Any], T]) -> T:
        """Return the object that a function of a module makes of a body that has been read, without its bulk.

        Raises:
            RequestError: what the function raises.
            BodyTooLaborious: it takes too much time or memory.
        """
        return await self.process.call(self._turns.note, _convert, body, function)

    async def make[T](self, body: LongBody, function: Callable[[LongBody], T]) -> T:
        """Return what a function of a module makes of a body that has been read.

        Raises:
            BodyTooLaborious: it takes too much time or memory.
        """
        return await self.process.call(self._turns.note, function, body)

    async def prompt[T](self, body: LongBody, function: Callable[[Any, PromptModel], T], model: PromptModel) -> T:
        """Return what a function of a module makes of the complete object of a body that has been read, and a model.

        Raises:
            RequestError: what the function raises.
            BodyTooLaborious: it takes too much time or memory.
        """
        for _ in range(MAX_TRIES):
            try:
                return await self.process.call(self._turns.note, _prompt, body, function, model.key)
            except ModelMissing:
                pickled = await anyio.to_thread.run_sync(pickle.dumps, model)
                await self.process.call(self._turns.note, _keep, pickled)
        raise RuntimeError("the process for long bodies forgets its models")


# The state of the process.
_latest: list[tuple[LongBody, WireObject]] = []  # the body that was read last, whose prompts are mostly wanted next
_models: OrderedDict[str, PromptModel] = OrderedDict()


def _read(body: LongBody) -> WireObject:
    return _parsed(body).without_bulk()


def _convert[T: WireObject](body: LongBody, function: Callable[[Any], T]) -> T:
    return function(_parsed(body)).without_bulk()


def _prompt[T](body: LongBody, function: Callable[[Any, PromptModel], T], key: str) -> T:
    if (model := _models.get(key)) is None:
        raise ModelMissing
    _models.move_to_end(key)
    return function(_parsed(body), model)


def _keep(pickled: bytes) -> None:
    model: PromptModel = pickle.loads(pickled)
    _models[model.key] = model
    while len(_models) > MAX_MODELS:
        _models.popitem(last=False)


def _parsed(body: LongBody) -> WireObject:
    if not _latest or _latest[0][0] != body:
        _latest.clear()  # which frees the memory first
        _latest.append((body, parse(body.kind, body.content)))
    return _latest[0][1]
