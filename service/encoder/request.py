"""Requests to an encoder, and their answers; no jax."""

import asyncio
import time
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from service.errors import ServiceError
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
    # Tokens at the begin of every text, those of its prompt, that a model whose prompts are not pooled leaves out.
    prompt_tokens: int = 0
    wants_tokens: bool = False  # the hidden states of all tokens, as the last layer leaves them, and no vectors
    queue_deadline: QueueDeadline | None = None  # None waits for as long as it takes
    clock: Clock = field(default_factory=lambda: Clock(time.perf_counter()), compare=False)


class VectorAnswer:
    """Completes the future of a request's vectors."""

    def __init__(self, future: asyncio.Future[Vectors]) -> None:
        self._future = future

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that awaits the future."""
        return self._future.get_loop()

    def put(self, event: Vectors | ServiceError) -> None:
        """Complete the future, unless it was cancelled or has failed."""
        if self._future.done():
            return
        if isinstance(event, ServiceError):
            self._future.set_exception(event)
        else:
            self._future.set_result(event)
