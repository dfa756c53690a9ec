"""Requests to an encoder, and the messages to its device thread; no jax."""

import asyncio
import time
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from service.observability.clock import Clock, QueueDeadline

# Of texts, or of the tokens of one text after the other.
type Vectors = Float[np.ndarray, "row vector"]
# Of one text among others, which have other numbers of tokens.
type HiddenStates = Float[np.ndarray, "_ hidden"]


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """The texts of one request."""

    id: str
    texts: tuple[tuple[int, ...], ...]  # token ids; none is empty, and none longer than the model's maximum
    # Of each text, the first token of the second text of a pair; empty if no text is a pair.
    second_from: tuple[int, ...] = ()
    wants_tokens: bool = False  # the hidden states of all tokens, as the last layer leaves them, and no vectors
    queue_deadline: QueueDeadline | None = None  # None waits for as long as it takes
    clock: Clock = field(default_factory=lambda: Clock(time.perf_counter()), compare=False)


@dataclass(frozen=True, slots=True)
class Submission:
    """A request, and the future of its vectors, which belongs to an event loop."""

    request: EncodeRequest
    vectors: asyncio.Future[Vectors]


@dataclass(frozen=True, slots=True)
class Abort:
    """The client of a request is gone, or the request has waited too long."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of the device thread."""


type Message = Submission | Abort | Stop
