"""What goes into the engine and what comes out: token ids, never strings."""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words where it has one."""

    STOP = "stop"  # a stop token came out; it is not part of the result
    LENGTH = "length"  # max_tokens came out, or the context is full
    ABORT = "abort"  # the client went away, or text found a stop string


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float = 1.0  # [0, 2]; 0 takes the likeliest token
    top_p: float = 1.0  # (0, 1]; probability mass kept
    seed: int = 0  # [0, 2**63); the same seed draws the same tokens, alone or in a crowd


@dataclass(frozen=True, slots=True)
class Request:
    """One client request, once: a prompt and how to continue it."""

    id: str
    prompt_ids: tuple[int, ...]  # at least one, each in [0, vocabulary)
    max_tokens: int  # at least 1; prompt and completion together fit the context
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()  # tokens that end the sequence; empty to ignore the end of text
    priority: int = 0  # the lower, the sooner; among equals the first to arrive
    cache_salt: bytes = b""  # only requests of the same salt find each other's prefixes


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What one step brought to one sequence."""

    token_ids: tuple[int, ...]  # new tokens, without the stop token; empty only when finished
    finish_reason: FinishReason | None = None  # set on the last event
    num_found: int = 0  # on the first event: prompt tokens that were found in the prefix cache


@dataclass(frozen=True, slots=True)
class Generation:
    """What came of one request, for those who wait for the whole."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
