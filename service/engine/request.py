"""What goes into the engine and what comes out: token ids, never strings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

MAX_LOGPROBS = 20  # alternatives reported for each token, at most
MAX_BIASED_TOKENS = 1024
MAX_STOP_IDS = 64


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words where it has one."""

    STOP = "stop"  # a stop token came out; it is not part of the result
    LENGTH = "length"  # max_tokens came out, or the context is full
    ABORT = "abort"  # the client went away, or text found a stop string
    ERROR = "error"  # the model's scores for this sequence are no numbers; its neighbours go on


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. What each field does stands in `sampler` and `drawing`."""

    temperature: float = 1.0  # [0, 2]; 0 takes the likeliest token
    top_p: float = 1.0  # (0, 1]; probability mass kept
    seed: int = 0  # [0, 2**63); the same seed draws the same tokens, alone or in a crowd
    top_k: int = 0  # [0, 2**31); how many of the likeliest tokens are kept; 0 keeps all
    min_p: float = 0.0  # [0, 1]; tokens less likely than this share of the likeliest are dropped
    repetition_penalty: float = 1.0  # (0, 10]; divides the scores of tokens of the prompt and the output
    presence_penalty: float = 0.0  # [-2, 2]; taken from the scores of tokens of the output
    frequency_penalty: float = 0.0  # [-2, 2]; the same, for each time that they came
    logit_bias: Mapping[int, float] = MappingProxyType({})  # token id to [-100, 100]; MAX_BIASED_TOKENS at most
    min_tokens: int = 0  # [0, max_tokens]; until so many tokens came, no stop token comes
    num_logprobs: int | None = None  # [0, MAX_LOGPROBS] alternatives with each token's own; None for no log-probability
    allowed_ids: frozenset[int] | None = None  # no other token comes; at least one; None for all

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the scores of the next."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class Request:
    """One client request, once: a prompt and how to continue it."""

    id: str
    prompt_ids: tuple[int, ...]  # at least one, each in [0, vocabulary)
    max_tokens: int  # at least 1; prompt and completion together fit the context
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()  # tokens that end the sequence; with min_tokens, MAX_STOP_IDS at most
    priority: int = 0  # the lower, the sooner; among equals the first to arrive
    cache_salt: bytes = b""  # only requests of the same salt find each other's prefixes
    num_prompt_logprobs: int | None = None  # [0, MAX_LOGPROBS], as num_logprobs, for each token of the prompt


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model held one token, and what it held likeliest, before any option of sampling."""

    logprob: float  # in nats
    rank: int  # how many tokens are as likely or likelier, itself included
    top: tuple[tuple[int, float], ...] = ()  # token id and log-probability, likeliest first


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """What one step computed beside its tokens, by the rows of its plan."""

    tokens: tuple[TokenLogprobs | None, ...]  # None for a row that did not ask
    prompts: tuple[tuple[TokenLogprobs, ...], ...]  # of each row's prompt tokens but its first; empty unless asked


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What one step brought to one sequence, or several steps did before somebody looked."""

    token_ids: tuple[int, ...]  # new tokens, without the stop token; empty only when finished
    finish_reason: FinishReason | None = None  # set on the last event
    num_found: int = 0  # on the first event: prompt tokens that were found in the prefix cache
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each of the tokens, if the request asked
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()  # on the first event, if it asked; the first token has none


@dataclass(frozen=True, slots=True)
class Generation:
    """What came of one request, for those who wait for the whole."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
