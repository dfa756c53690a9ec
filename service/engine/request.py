"""A request to the engine and the stream of events that answers it: token ids, never strings."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from service.engine.constraint import Constraint
from service.errors import ServiceError
from service.observability.clock import Clock, QueueDeadline

MAX_SEQUENCES = 64  # of one request of a client, each of which is a request here
MAX_PRIORITY = 1_000_000  # of a client's request, and its negative the least
BACKGROUND_PRIORITY = 2 * MAX_PRIORITY + 1  # added to that of a batch's request, which comes after every client's


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words where it has one."""

    STOP = "stop"  # a stop token was sampled; it is not part of the result
    LENGTH = "length"  # max_tokens were sampled, or the context is full
    ABORT = "abort"  # the client disconnected, or a stop string was found in the text
    ERROR = "error"  # its logits are NaN or infinite, or its constraint failed; other sequences go on


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is sampled; `service.engine.steps.sampling` applies it."""

    temperature: float = 1.0  # [0, 2]; 0 takes the likeliest token
    top_p: float = 1.0  # (0, 1]; probability mass kept
    seed: int = 0  # [0, 2**63); the same seed samples the same tokens, alone or batched
    top_k: int = 0  # [0, 2**31); how many of the likeliest tokens are kept; 0 keeps all
    min_p: float = 0.0  # [0, 1]; tokens less likely than this share of the likeliest are dropped
    repetition_penalty: float = 1.0  # (0, 10]; divides the logits of tokens of the prompt and the output
    presence_penalty: float = 0.0  # [-2, 2]; subtracted from the logits of tokens of the output
    frequency_penalty: float = 0.0  # [-2, 2]; the same, for each occurrence
    logit_bias: Mapping[int, float] = MappingProxyType({})  # token id to [-100, 100]; MAX_BIASED_TOKENS entries at most
    group_from: int | None = None  # where tokens from this id on are together likelier than any other, only they remain
    scores: bool = False  # whether log-probabilities are those after all options but the temperature
    min_tokens: int = 0  # [0, max_tokens]; tokens before which no stop token is sampled
    num_logprobs: int | None = None  # [0, MAX_LOGPROBS] alternatives with each token's own; None for no log-probability
    # The tokens that may be sampled, at least one, as the bytes of their `pack_token_mask`; None for all. The device
    # thread has no time to pack a large vocabulary.
    allowed_mask: bytes | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens change the logits of the next."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True, eq=False)
class Medium:
    """What the model's encoder is given: the features of a window of sound, or the pixels of a picture."""

    digest: bytes  # of what it is; equal ones are encoded once
    features: Any  # arrays, as the encoder takes them
    num_rows: int = 0  # that take the places of tokens


@dataclass(frozen=True, slots=True)
class PlacedMedium:
    """A medium whose rows take the places of tokens of a prompt."""

    medium: Medium
    start: int  # position of its first row
    # Its rows by row and column, of a model whose positions have both; text behind it goes on after the longer one.
    grid: tuple[int, int] | None = None
    line: int | None = None  # rows between two tokens that end a line, which are text; None for rows without any

    @property
    def num_rows(self) -> int:
        """The tokens whose places it takes."""
        return self.medium.num_rows

    @property
    def end(self) -> int:
        """The position after its last row."""
        return self.start + self.num_rows + (0 if self.line is None else (self.num_rows - 1) // self.line)


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """Updates of the model's linear layers, with which a sequence is computed."""

    name: str
    digest: bytes  # of what it is; sequences of equal ones share a slot and prefixes
    # Of each layer group of the model, those of one slot in the order of `LayerGroup.adapters`.
    arrays: tuple[tuple[Float[np.ndarray, "..."], ...], ...]

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        return sum(array.nbytes for of_group in self.arrays for array in of_group)


@dataclass(frozen=True, slots=True)
class Probe:
    """A token, and the position of the prompt after which its log-probability is wanted."""

    position: int
    token_id: int


@dataclass(frozen=True, slots=True)
class Request:
    """One client request: a prompt and how to continue it."""

    id: str
    prompt_ids: tuple[int, ...]  # at least one, each in [0, vocabulary)
    max_tokens: int  # at least 1; prompt and completion together fit the context
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()  # tokens that end the sequence; with min_tokens, MAX_STOP_IDS at most
    priority: int = 0  # the lower, the sooner; among equals the flow with the fewest tokens, then the first to arrive
    flow: str = ""  # requests of one flow, such as an API key's, share the device with those of others by weight
    weight: float = 1.0  # of its flow; above 0
    cache_salt: bytes = b""  # only requests of the same salt find each other's prefixes
    shared_len: int = (
        0  # leading tokens that later requests are likely to have, too, such as the instructions of a chat
    )
    num_prompt_logprobs: int | None = None  # [0, MAX_LOGPROBS], as num_logprobs, for each token of the prompt
    probe: Probe | None = None  # instead of `num_prompt_logprobs`
    heads: tuple[tuple[int, int], ...] = ()  # layer and head of those whose scores of the memory are wanted
    memory: Medium | None = None  # of a model that attends to an encoder, which every request to it has
    media: tuple[PlacedMedium, ...] = ()  # of a model that takes rows for tokens, in the order of positions
    adapter: Adapter | None = None  # of an engine with slots for them
    constraint: Constraint | None = None  # only of this request: it advances with the request's tokens
    prediction: tuple[int, ...] = ()  # tokens that the client expects in the answer, in their order
    queue_deadline: QueueDeadline | None = None  # None waits for as long as it takes

    @property
    def is_background(self) -> bool:
        """Whether it belongs to a batch, and so gives way to every client's request."""
        return self.priority > MAX_PRIORITY


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The model's own log-probability of one token, and the likeliest tokens, before any option of sampling."""

    logprob: float  # in nats
    rank: int  # how many tokens are as likely or likelier, itself included
    top: tuple[tuple[int, float], ...] = ()  # token id and log-probability, likeliest first


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """The log-probabilities of one step, by the sequences of its plan."""

    tokens: tuple[TokenLogprobs | None, ...]  # None for a sequence that did not request them
    prompts: tuple[tuple[TokenLogprobs, ...], ...]  # of each prompt's tokens but the first; empty unless requested
    # Of the tokens of each chunk, the scores of positions of the memory; None unless requested.
    attention: tuple[Float[np.ndarray, "head prompt_token position"] | None, ...] = ()


class TokenEvent(NamedTuple):
    """The outcome of one step for one sequence, or of several steps that were read together."""

    token_ids: tuple[int, ...]  # new tokens, without the stop token; empty only when finished
    finish_reason: FinishReason | None = None  # set on the last event
    num_cached_tokens: int = 0  # on the first event: prompt tokens that were found in the prefix cache
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each of the tokens, if requested
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()  # on the first event, if requested; None for the first token
    stop: tuple[int, TokenLogprobs | None] | None = None  # the stop token, on the last event if one ended it
    probe: TokenLogprobs | None = None  # on the first event, if requested
    attention: Float[np.ndarray, "head prompt_token position"] | None = (
        None  # of the prompt's tokens, on the first event
    )
    num_predicted: tuple[int, int] = (0, 0)  # tokens of the request's prediction that were drafted: accepted, rejected


class TokenStream:
    """The events of one request, in order, sent by the device thread; ends after the one with a finish reason.

    Delivery never blocks the device thread: unread events wait here, bounded by the request's max_tokens. A slow reader
    gets all events that have arrived as one, so falling behind makes its work less.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, abort: Callable[[], None], on_end: Callable[[], object]
    ) -> None:
        """Connect the stream with its reader.

        Args:
            loop: the event loop of the reader.
            abort: called when the reader stops reading; the engine then stops the request.
            on_end: called once, on the event loop, after the last event or after `abort`.
        """
        self.loop = loop
        self.clock = Clock(time.perf_counter())
        self.waited_for_compile_s = 0.0  # counted by the device thread before it delivers what had to wait
        self._abort = abort
        self._on_end = on_end
        self._events: deque[TokenEvent | ServiceError] = deque()
        self._arrived = asyncio.Event()
        self._is_over = False

    def put(self, event: TokenEvent | ServiceError) -> None:
        """Add an event, or the error that ends the stream; called on the event loop."""
        if isinstance(event, ServiceError) or event.finish_reason is not None:
            self._on_end()
        self._events.append(event)
        self._arrived.set()

    def abort(self) -> None:
        """Stop the request; calling it again, or after the end, does nothing."""
        if not self._is_over:
            self._is_over = True
            self._abort()
            self._on_end()
            self._arrived.set()

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        """Return the next event: all that have arrived since the last one, joined.

        Raises:
            EngineError: the engine failed.
            Draining: the process is about to end.
        """
        while not self._events and not self._is_over:
            self._arrived.clear()
            await self._arrived.wait()
        if self._is_over:
            raise StopAsyncIteration
        if isinstance(error := self._events[0], ServiceError):
            self._is_over = True
            raise error
        event = _joined(self._take())
        self._is_over = event.finish_reason is not None
        return event

    def _take(self) -> list[TokenEvent]:
        """Remove and return the events that have arrived, up to an error."""
        taken: list[TokenEvent] = []
        while self._events and isinstance(event := self._events[0], TokenEvent):
            taken.append(event)
            self._events.popleft()
        return taken


@dataclass(frozen=True, slots=True)
class Generation:
    """The whole result of one request."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None


def _joined(events: list[TokenEvent]) -> TokenEvent:
    """Return one event with the contents of several."""
    if len(events) == 1:
        return events[0]
    return TokenEvent(
        token_ids=tuple(token_id for event in events for token_id in event.token_ids),
        finish_reason=events[-1].finish_reason,
        num_cached_tokens=events[0].num_cached_tokens,
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        prompt_logprobs=events[0].prompt_logprobs,
        stop=events[-1].stop,
        probe=events[0].probe,
        attention=events[0].attention,
        num_predicted=_summed(event.num_predicted for event in events),
    )


def _summed(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    first, second = zip(*pairs, strict=True)
    return sum(first), sum(second)
