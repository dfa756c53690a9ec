"""What the HTTP side needs from the rest of the service, and how a handler gets it.

The engine and the start are known by these Protocols only, so everything here is testable without a device.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import anyio
from fastapi import Request as HttpRequest
from starlette.types import Receive

from service.api.http.deadline import Deadline
from service.engine.request import Request, TokenEvent
from service.errors import UnknownModel
from service.observability.metrics import Metrics
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import GenerationDefaults, Tokenizer

# Where the key check leaves what tells one key's requests from another's.
CACHE_SALT = "levserve.cache_salt"

# Threads that tokenize and render: they hold a core each, which the device thread needs too.
MAX_TEXT_THREADS = 4


@runtime_checkable
class TokenStream(Protocol):
    """The tokens of one sequence, one event or several together; ends after the event that has a finish reason."""

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """Iterate once; raises EngineError if the device thread dies."""
        ...

    def abort(self) -> None:
        """Stop the sequence and free what it holds; harmless when it has ended."""
        ...


@runtime_checkable
class TokenEngine(Protocol):
    """Token ids in, token ids out."""

    def submit(self, request: Request) -> TokenStream:
        """Queue a request; raises Overloaded, Draining or EngineStopped at once."""
        ...


@dataclass(frozen=True)
class ServedModel:
    """A model that is ready to answer."""

    name: str  # what clients send as `model`
    created: int  # Unix time of the load, in seconds
    engine: TokenEngine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None: completions only
    max_model_len: int  # tokens, prompt and completion together
    vocab_size: int  # rows of the embedding: the token ids that a client may send
    stop_ids: frozenset[int]
    defaults: GenerationDefaults


@runtime_checkable
class Readiness(Protocol):
    """How far the start is."""

    @property
    def is_live(self) -> bool:
        """False once the device thread is gone: restart me."""
        ...

    @property
    def is_ready(self) -> bool:
        """True from the first real token until the drain."""
        ...

    def progress(self) -> dict[str, Any]:
        """Return the phases of the start as a JSON object."""
        ...

    def served_model(self) -> ServedModel:
        """Return the model; raises NotReady, Draining or EngineStopped if there is none to ask."""
        ...


@dataclass(frozen=True)
class ApiContext:
    """What all handlers share."""

    readiness: Readiness
    metrics: Metrics
    request_timeout_s: float
    default_max_tokens: int | None
    default_temperature: float | None
    text_threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(MAX_TEXT_THREADS))


async def context_of(request: HttpRequest) -> ApiContext:
    """Return what all handlers share (a FastAPI dependency)."""
    return request.app.state.context


async def served_model(request: HttpRequest) -> ServedModel:
    """Return the model that answers (a FastAPI dependency).

    Raises:
        NotReady, Draining, EngineStopped: nothing can answer now.
    """
    return request.app.state.context.readiness.served_model()


def check_name(asked: str, model: ServedModel) -> None:
    """Check that a request means the model that is served.

    Raises:
        UnknownModel: it means another.
    """
    if asked != model.name:
        raise UnknownModel(asked, [model.name])


@dataclass(frozen=True)
class Exchange:
    """One HTTP request while it is being answered."""

    context: ApiContext
    model: ServedModel
    deadline: Deadline
    receive: Receive  # tells when the client goes
    facts: dict[str, Any]  # the fields that the request's log line will have
    cache_salt: bytes = b""  # requests of one key find each other's prefixes, and nobody else's


async def exchange_of(request: HttpRequest) -> Exchange:
    """Begin to answer a request; its time runs from here (a FastAPI dependency).

    Raises:
        NotReady, Draining, EngineStopped: nothing can answer now.
    """
    context = await context_of(request)
    model = context.readiness.served_model()
    deadline = Deadline(context.request_timeout_s)
    salt = request.scope.get(CACHE_SALT, b"")
    return Exchange(context, model, deadline, request.receive, request.state.facts, salt)
