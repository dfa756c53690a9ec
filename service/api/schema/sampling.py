"""The fields that say how tokens are drawn, for chats and completions alike, under OpenAI's and vLLM's names.

Source: https://platform.openai.com/docs/api-reference/completions/create,
https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html
"""

from typing import Annotated, Any

from pydantic import Field, PlainValidator

from service.api.schema.wire import WireObject
from service.engine.request import MAX_BIASED_TOKENS
from service.errors import InvalidParameter

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_CHOICES = 8  # of one prompt
MAX_STOP_TOKEN_IDS = 32
MAX_ECHOED_CHARS = 16


def _logit_bias(value: Any) -> dict[int, float]:
    """Take an object of token ids, which JSON writes as strings, and biases.

    Raises:
        InvalidParameter: it is none, or too large, or a bias is out of range.
    """
    if not isinstance(value, dict):
        raise InvalidParameter("Invalid 'logit_bias': it must map token ids to numbers.", param="logit_bias")
    if len(value) > MAX_BIASED_TOKENS:
        message = f"Invalid 'logit_bias': {len(value)} tokens are over the limit of {MAX_BIASED_TOKENS}."
        raise InvalidParameter(message, param="logit_bias")
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= len(str(INT32_MAX)) and str(int(key)) == key):
            raise InvalidParameter(
                f"Invalid 'logit_bias': '{key[:MAX_ECHOED_CHARS]}' is no token id.", param="logit_bias"
            )
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            param = f"logit_bias.{key}"
            raise InvalidParameter(f"Invalid '{param}': it must be a number from -100 to 100.", param=param)
    return {int(key): float(bias) for key, bias in value.items()}


class SamplingFields(WireObject):
    """How tokens are drawn, and when a sequence ends; None where the request leaves it to the model's author."""

    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=-1, le=INT32_MAX)  # vLLM's; 0 and -1 keep all tokens
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)  # vLLM's
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=10, allow_inf_nan=False)  # vLLM's
    presence_penalty: float = Field(default=0.0, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2, allow_inf_nan=False)
    logit_bias: Annotated[dict[int, float], PlainValidator(_logit_bias)] = Field(default_factory=dict)
    seed: int | None = Field(default=None, ge=-(2**63), le=INT64_MAX)
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    min_tokens: int = Field(default=0, ge=0, le=INT32_MAX)  # vLLM's: no stop token before
    ignore_eos: bool = False  # vLLM's: go on after the end of text
    stop_token_ids: Annotated[  # vLLM's: these end the sequence too
        list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)
    ] = Field(default_factory=list)
    allowed_token_ids: (
        Annotated[list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(min_length=1, fail_fast=True)] | None
    ) = None  # vLLM's: no other token comes

    def refuse_unknown_tokens(self, vocab_size: int) -> None:
        """Check the token ids.

        Raises:
            InvalidParameter: the model has no such token.
        """
        for name, token_ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids or ()),
        ):
            for i, token_id in enumerate(token_ids):
                if token_id >= vocab_size:
                    raise _unknown_token(f"{name}[{i}]", token_id, vocab_size)
        for token_id in self.logit_bias:
            if token_id >= vocab_size:
                raise _unknown_token("logit_bias", token_id, vocab_size)

    def seed_of(self, index: int, drawn: int) -> int:
        """Return the seed of one of the choices: the first has the request's own, the others follow from it.

        Args:
            index: which choice.
            drawn: what to begin with if the request has no seed.

        Source: the steps between seeds: Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators".
        """
        own = drawn if self.seed is None else self.seed
        return (own + index * 0x9E37_79B9_7F4A_7C15) & INT64_MAX


def _unknown_token(param: str, token_id: int, vocab_size: int) -> InvalidParameter:
    return InvalidParameter(
        f"Invalid '{param}': {token_id} is no token id of this model, whose ids are less than {vocab_size}.",
        param=param,
    )
