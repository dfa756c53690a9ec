"""The objects that handlers work with, and the FastAPI dependencies that provide them.

The engine is a Protocol, so that the API can be tested without a device.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, override, runtime_checkable

from fastapi import Request as HttpRequest
from starlette.types import Receive

from service.api.held import HELD, Held, Models
from service.api.http.auth import API_KEY, CACHE_SALT
from service.api.http.background import BACKGROUND, Background
from service.api.http.client_task import ARRIVED_S, TASK
from service.api.http.ignored import IgnoredFields
from service.api.http.keys import ApiKey
from service.api.http.probes import Readiness
from service.api.http.receive import Deadline, cancel_on_disconnect
from service.api.http.request_queue import PLACE, Place, RequestQueue
from service.api.schema.wire import IgnoredField, WireObject
from service.api.served import Served, ServedEncoder
from service.api.work.long_body import LONG_BODY, LongBodies, LongBody
from service.api.work.text_threads import TextThreads
from service.engine.request import Request, TokenEvent
from service.errors import QueueTimeout, WrongKindOfModel
from service.observability.clock import Clock, QueueDeadline
from service.observability.metrics import Metrics
from service.text.generation_defaults import NO_DEFAULTS, GenerationDefaults
from service.text.grammar.compiler import GrammarCompiler
from service.text.prompt_model import PromptModel

if TYPE_CHECKING:
    from service.text.chat_template import ChatTemplate

MAX_LOGGED_CHARS = 128


@runtime_checkable
class TokenStream(Protocol):
    """The tokens of one sequence, in events of one or more; ends after the event that has a finish reason."""

    clock: Clock  # when it passed its stages, so far
    waited_for_compile_s: float  # how long its steps have waited for executables that a start was still compiling

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """Iterate once; raises EngineError if the device thread fails."""
        ...

    def abort(self) -> None:
        """Stop the sequence and free its slot and pages; does nothing once it has ended."""
        ...


@runtime_checkable
class TokenEngine(Protocol):
    """Token ids in, token ids out."""

    def submit(self, request: Request) -> TokenStream:
        """Queue a request without waiting; raises Overloaded, Draining or EngineStopped."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServedModel(Served):
    """A loaded model that continues sequences of tokens."""

    engine: TokenEngine
    chat_template: "ChatTemplate | None"  # None: completions only
    stop_ids: frozenset[int]
    defaults: GenerationDefaults  # the checkpoint's
    operator_defaults: GenerationDefaults = NO_DEFAULTS  # of this model; they come before those of all models
    number_formats: Mapping[str, str]  # of activations, weights and cache: `dtype`, `quantization`, `kv_dtype`

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """The compiler of grammars for this model, with those that it has compiled."""
        return GrammarCompiler(self.tokenizer, self.vocab_size, self.stop_ids)

    @cached_property
    @override
    def prompt_model(self) -> PromptModel:
        return self._prompt_model(self.chat_template)

    @property
    @override
    def facts(self) -> Mapping[str, Any]:
        return self.number_formats

    @property
    @override
    def example(self) -> tuple[str, Mapping[str, Any]]:
        if self.chat_template is None:
            return super().example
        return "chat/completions", {"messages": [{"role": "user", "content": "Who are you?"}]}

    @property
    @override
    def capabilities(self) -> tuple[str, ...]:
        chat = () if self.chat_template is None else ("chat/completions", "responses", "messages")
        return (*chat, *super().capabilities)

    @property
    def has_thinking(self) -> bool:
        """Whether it writes its thinking between tags before an answer."""
        return self.chat_template is not None and self.chat_template.has_thinking


@runtime_checkable
class ModelReadiness(Readiness, Models, Protocol):
    """The state of the service, and its models."""


@dataclass(frozen=True)
class ApiContext:
    """State that all requests share."""

    readiness: ModelReadiness
    metrics: Metrics
    request_timeout_s: float
    default_max_tokens: int | None
    default_temperature: float | None
    queue: RequestQueue
    text_threads: TextThreads
    long_bodies: LongBodies


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """State of one HTTP request before a model is found for it."""

    api: ApiContext
    deadline: Deadline
    receive: Receive  # after the body, it returns when the client disconnects
    log_fields: dict[str, Any]  # added to the request's log line
    ignored: IgnoredFields
    clocks: list[Clock]  # of its sequences, for its trace
    held: list[Held]  # what is released when the answer has ended
    cache_salt: bytes = b""  # only requests with the same key share cached prefixes
    key: ApiKey | None = None  # None if none is required, or the request belongs to a batch
    is_background: bool = False  # whether it belongs to a batch, and so comes after every other request
    place: Place | None = None  # None for a batch's request, which has none
    long_bodies: list[LongBody] = field(default_factory=list)  # the request's body, once it is read, if it is long
    arrived_s: float = 0.0  # on the clock of `time.perf_counter`

    def log_user(self, user: str | None) -> None:
        """Add the client's own user, if it names one, to the log line."""
        if user is not None:
            self.log_fields["user"] = "".join(c if c.isprintable() else "?" for c in user[:MAX_LOGGED_CHARS])

    def ignore(self, paths: Iterable[str]) -> None:
        """Name fields that are accepted and have no effect; raises UnsupportedParameter with STRICT_FIELDS."""
        self.ignored.add(IgnoredField(path) for path in paths)

    async def any_context(self, name: str | None) -> "AnyContext":
        """Hold the model of this name, of whatever kind, until the answer has ended; None names the only model.

        Raises:
            UnknownModel, AmbiguousModel: no model, or several, have this name.
            MissingParameter: there are several models, and the request names none.
            NotReady, Draining, EngineStopped: it cannot answer now.
            ClientDisconnected, DeadlineExceeded: the client or the time was gone before it was loaded.
        """
        models = self.api.readiness
        held = models.hold(name)
        if held is None:
            loading = self.deadline.within(models.wait_for(name))
            held = await cancel_on_disconnect(self.receive, loading)
        self.held.append(held)
        self.log_fields["model"] = held.model.name
        return AnyContext(**vars(self), model=held.model)

    async def generating(self, name: str) -> "RequestContext":
        """Hold a model that continues sequences of tokens; raises as `any_context`, and WrongKindOfModel."""
        context = await self.any_context(name)
        return RequestContext(**{**vars(context), "model": generating(context.model)})

    async def encoding(self, name: str | None) -> "EncodingContext":
        """Hold a model that turns texts into vectors; raises as `generating`."""
        return _encoding(await self.any_context(name), is_score=False)

    async def pooling(self, name: str) -> "EncodingContext":
        """Hold a model that turns texts into numbers of any kind; raises as `generating`."""
        return _encoding(await self.any_context(name), is_score=None)

    async def scoring(self, name: str | None) -> "EncodingContext":
        """Hold a model that scores pairs of texts, None for the only one; raises as `generating`."""
        return _encoding(await self.any_context(name), is_score=True)


@dataclass(frozen=True, kw_only=True)
class AnyContext(Arrival):
    """State of one HTTP request while it is answered, by a model of any kind."""

    model: Served

    def wait_in_queue(self, num_tokens: int) -> QueueDeadline | None:
        """Count the request as one that waits with so many tokens; return until when, None for no limit.

        Raises:
            QueuedTokensFull: too many tokens wait already.
            QueueTimeout: the request has waited too long already.
        """
        if self.place is None:
            return None
        queue = self.api.queue
        queue.add_prompts(self.place, num_tokens)
        limit_s = queue.caps.queue_timeout_s
        if limit_s is None:
            return None
        end_s = self.arrived_s + limit_s
        if time.perf_counter() > end_s:
            raise QueueTimeout(limit_s, retry_after_s=queue.retry_after_s())
        return QueueDeadline(end_s, limit_s)

    @property
    def has_long_body(self) -> bool:
        """Whether the work for the request, besides its steps, must leave time to others."""
        return bool(self.long_bodies)

    async def run_in_thread[T](self, work: Callable[[], T]) -> T:
        """Run work that may take long, such as compiling a grammar, off the event loop; raises DeadlineExceeded."""
        return await self.deadline.within(self.api.text_threads.run(work, is_long=self.has_long_body))

    async def make_prompt[B, T](self, body: B, make: Callable[[B, PromptModel], T]) -> T:
        """Return what a function of a module makes of the body and the model; of a long body in the process for those.

        Raises:
            DeadlineExceeded, BodyTooLaborious: it takes too much time, or memory.
        """
        model = self.model.prompt_model
        if not self.has_long_body:
            return await self.run_in_thread(lambda: make(body, model))
        return await self.deadline.within(self.api.long_bodies.prompt(self.long_bodies[0], make, model))

    async def convert[B, T: WireObject](self, body: B, convert: Callable[[B], T]) -> T:
        """Return the object that a function makes of the body; of a long one without its bulk, as `make_prompt`."""
        if not self.has_long_body:
            return convert(body)
        return await self.deadline.within(self.api.long_bodies.convert(self.long_bodies[0], convert))


@dataclass(frozen=True, kw_only=True)
class RequestContext(AnyContext):
    """State of a request for tokens."""

    model: ServedModel


@dataclass(frozen=True, kw_only=True)
class EncodingContext(AnyContext):
    """State of a request for vectors."""

    model: ServedEncoder


async def api_context(request: HttpRequest) -> ApiContext:
    """Return the state that all requests share."""
    return request.app.state.context


async def arrival(request: HttpRequest) -> Arrival:
    """Start a request's deadline and return its state.

    Raises:
        NotReady, Draining, EngineStopped: no model can answer now.
    """
    api = await api_context(request)
    api.readiness.check_open()
    request.scope[TASK] = asyncio.current_task()
    background: Background | None = request.scope.get(BACKGROUND)
    limit_s = api.request_timeout_s if background is None else background.timeout_s
    return Arrival(
        api=api,
        deadline=Deadline(limit_s, request.scope.get(ARRIVED_S)),
        receive=request.receive,
        log_fields=request.state.log_fields,
        ignored=request.state.ignored,
        clocks=request.state.clocks,
        held=request.scope[HELD],
        cache_salt=request.scope.get(CACHE_SALT, b""),
        key=request.scope.get(API_KEY),
        is_background=background is not None,
        place=request.scope.get(PLACE),
        long_bodies=request.scope.setdefault(LONG_BODY, []),
        arrived_s=request.state.arrived_s,
    )


def _encoding(context: AnyContext, *, is_score: bool | None) -> EncodingContext:
    model = context.model
    if not isinstance(model, ServedEncoder) or is_score not in (None, model.vectors.is_score):
        raise WrongKindOfModel(model.name, model.ability, model.routes)
    return EncodingContext(**{**vars(context), "model": model})


def generating(model: Served) -> ServedModel:
    """Return a model that continues sequences of tokens.

    Raises:
        WrongKindOfModel: it is an encoder.
    """
    if not isinstance(model, ServedModel):
        raise WrongKindOfModel(model.name, model.ability, model.routes)
    return model
