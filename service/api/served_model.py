"""A loaded model as the API sees it. The engine is a Protocol, so that the API can be tested without a device."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from service.engine.request import Request, TokenEvent
from service.errors import UnknownModel
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import GenerationDefaults, Tokenizer


@runtime_checkable
class TokenStream(Protocol):
    """The tokens of one sequence, in events of one or more; ends after the event that has a finish reason."""

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


@dataclass(frozen=True)
class ServedModel:
    """A loaded model."""

    name: str  # the `model` of requests
    created: int  # Unix time of the load, in seconds
    engine: TokenEngine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None: completions only
    max_model_len: int  # tokens, prompt and completion together
    vocab_size: int  # rows of the embedding; valid token ids are less
    stop_ids: frozenset[int]
    defaults: GenerationDefaults

    def check_name(self, requested: str) -> None:
        """Raise UnknownModel unless a request names this model."""
        if requested != self.name:
            raise UnknownModel(requested, [self.name])
