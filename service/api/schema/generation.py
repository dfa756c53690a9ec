"""The request fields that chats and completions share, under OpenAI's and vLLM's names: strict types, closed ranges.

A number is a number (neither `true` nor `"1"`), finite, and within the range that its field states.
Source: https://platform.openai.com/docs/api-reference/completions/create,
https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html,
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (extra parameters)
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from service.api.conversation import INT64_MAX, AnswerFormat, Options
from service.api.schema.other_names import REFUSED_PROMISES, with_own_names
from service.api.schema.structured import StructuredOutputs
from service.api.schema.wire import NeutralValues, WireObject
from service.engine.limits import MAX_BIASED_TOKENS, MAX_LOGPROBS
from service.engine.request import MAX_PRIORITY
from service.errors import InvalidParameter

INT32_MAX = 2**31 - 1
MAX_CHOICES = 8  # of one prompt
MAX_STOP_TOKEN_IDS = 32
MAX_ALLOWED_TOKEN_IDS = 2**18  # no vocabulary is larger
MAX_STOP_STRINGS = 16  # OpenAI allows 4; tasks of lm-eval have more
MAX_STOP_CHARS = 1024
MAX_BAD_WORDS, MAX_BAD_WORD_CHARS = 64, 128
MAX_NAME_CHARS = 512
MAX_ECHOED_CHARS = 16

# Promises of vLLM's interface that this server does not keep.
REFUSED: NeutralValues = {
    "logprob_token_ids": ([],),
    "logits_processors": ([],),
    "use_beam_search": (False,),
    **REFUSED_PROMISES,
}
# Hints of vLLM, SGLang and their routers, of llama.cpp, Ollama and OpenRouter.
HINTS: NeutralValues = {
    "cache_prompt": (True,),
    "detokenize": (True,),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "keep_alive": (),
    "kv_transfer_params": (),
    "length_penalty": (1, 1.0),  # of beams
    "no_stop_trim": (False,),
    "options": ({},),
    "provider": ({},),
    "request_id": (),
    "return_hidden_states": (False,),
    "transforms": ([],),
    "usage": ({"include": True},),
    "vllm_xargs": ({},),
}
REMEDIES = {
    "logprob_token_ids": "a step returns only the likeliest tokens. Have /v1/completions score each token as the end "
    "of a prompt, by 'echo', 'logprobs' and 'max_tokens': 0."
}

# The JSON Schemas of fields whose validators Pydantic cannot read.
LOGIT_BIAS = {
    "type": "object",
    "maxProperties": MAX_BIASED_TOKENS,
    "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
_STOP_STRING = {"type": "string", "maxLength": MAX_STOP_CHARS}
SMALLEST_TOP_P = 1e-6
TOP_P = {"type": "number", "minimum": 0, "maximum": 1}
MAX_TOKENS = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": INT64_MAX}, {"const": -1}]}
STOP = {"anyOf": [_STOP_STRING, {"type": "array", "items": _STOP_STRING, "maxItems": MAX_STOP_STRINGS}]}


def _logit_bias(value: Any) -> dict[int, float]:
    """Return biases by token id; JSON writes the ids as strings."""
    if not isinstance(value, dict):
        raise InvalidParameter("Invalid 'logit_bias': it must map token ids to numbers.", param="logit_bias")
    if len(value) > MAX_BIASED_TOKENS:
        message = f"Invalid 'logit_bias': {len(value)} tokens are over the limit of {MAX_BIASED_TOKENS}."
        raise InvalidParameter(message, param="logit_bias")
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= len(str(INT32_MAX)) and str(int(key)) == key):
            raise InvalidParameter(
                f"Invalid 'logit_bias': '{key[:MAX_ECHOED_CHARS]}' is not a token id.", param="logit_bias"
            )
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            param = f"logit_bias.{key}"
            raise InvalidParameter(f"Invalid '{param}': it must be a number from -100 to 100.", param=param)
    return {int(key): float(bias) for key, bias in value.items()}


def _stop_strings(value: Any) -> Any:
    """Return a list; an empty string stops nothing."""
    stated = [value] if isinstance(value, str) else value
    return [text for text in stated if text != ""] if isinstance(stated, list) else stated


def _top_p(value: Any) -> Any:
    """Return the smallest mass for 0, which leaves only the likeliest token."""
    return SMALLEST_TOP_P if type(value) in (int, float) and value == 0 else value


def limit_of_tokens(value: Any) -> Any:
    """Return None for -1, with which clients ask for the rest of the context."""
    return None if type(value) is int and value == -1 else value


TopP = Annotated[float, Field(gt=0, le=1), BeforeValidator(_top_p), WithJsonSchema(TOP_P)]
MaxTokens = Annotated[
    int | None, Field(ge=1, le=INT64_MAX), BeforeValidator(limit_of_tokens), WithJsonSchema(MAX_TOKENS)
]


Temperature = Annotated[float, Field(ge=0, le=2)]
TopK = Annotated[int, Field(ge=-1, le=INT32_MAX)]
MinP = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=10)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Seed = Annotated[int, Field(ge=-(2**63), le=INT64_MAX)]
StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
    Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
    BeforeValidator(_stop_strings),
    WithJsonSchema(STOP),
]


class SamplingFields(WireObject):
    """How tokens are sampled and when a sequence ends; None leaves the choice to the operator or the model's author."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    """vLLM's: keep this many of the likeliest tokens; 0 and -1 keep all."""
    min_p: MinP | None = None
    """vLLM's: keep tokens at least this fraction as likely as the likeliest."""
    repetition_penalty: RepetitionPenalty | None = None
    """vLLM's: divides positive and multiplies negative logits of tokens in prompt or answer."""
    presence_penalty: Penalty = 0.0
    """Subtracted from the logit of a token that the answer already has."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from a token's logit for each time that the answer already has it."""
    logit_bias: Annotated[dict[int, float], PlainValidator(_logit_bias), WithJsonSchema(LOGIT_BIAS)] = Field(
        default_factory=dict
    )
    """Added to the logits of tokens, by token id."""
    seed: Seed | None = None
    """The same seed gives the same text, alone or in a batch. Later choices use seeds derived from it."""
    # Defends against T5.
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    """Continuations of each prompt."""
    min_tokens: int = Field(default=0, ge=0, le=INT32_MAX)
    """vLLM's: no stop token is sampled, and no stop string counts, before this many tokens."""
    ignore_eos: bool = False
    """vLLM's: continue after the model's end-of-text tokens, until another limit."""
    stop_token_ids: Annotated[
        list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)
    ] = Field(default_factory=list)
    """vLLM's: additional tokens that end the text."""
    allowed_token_ids: (
        Annotated[
            list[Annotated[int, Field(ge=0, le=INT32_MAX)]],
            Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS, fail_fast=True),
        ]
        | None
    ) = None
    """vLLM's: no other token is sampled."""


class SharedFields(SamplingFields):
    """The fields that chats, completions and responses share."""

    stop: StopStrings = Field(default_factory=list)
    """Strings that end the text, and neither thinking nor calls; the text excludes them."""
    include_stop_str_in_output: bool = False
    """vLLM's: the text ends with the stop string, or the text of the stop token, that ended it."""
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    """vLLM's: requests of a lower number are scheduled sooner."""
    bad_words: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]],
        Field(max_length=MAX_BAD_WORDS, fail_fast=True),
    ] = Field(default_factory=list)
    """vLLM's: the tokens of these words, with or without a space before, are not sampled in their order."""
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_NAME_CHARS)
    """vLLM's: only requests with the same value (and API key) find one another's cached prefixes."""
    skip_special_tokens: bool = True
    """vLLM's: whether the text leaves special tokens out, marks of thinking too; false not with `echo`."""
    spaces_between_special_tokens: bool | None = None
    """vLLM's: with `skip_special_tokens: false` it must not be true."""
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=INT32_MAX)
    """vLLM's: the number of the prompt's tokens to keep; -1: all but one of the context."""
    truncation_side: Literal["left", "right"] = "left"
    """vLLM's: whether `truncate_prompt_tokens` cuts the beginning (`left`) or the end (`right`)."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's: a grammar of the answer, in one notation."""

    def shared_options(self) -> dict[str, Any]:
        """Return the fields that are options under the same names."""
        return {name: getattr(self, name) for name in _SHARED_OPTIONS}

    @override
    def check_consistency(self) -> None:
        """Refuse a prompt cut to nothing, a grammar that is not in one notation, and spaces that nothing here puts."""
        if self.truncate_prompt_tokens == 0:
            message = "Invalid 'truncate_prompt_tokens': it must be at least 1, or -1 for the model's maximum."
            raise InvalidParameter(message, param="truncate_prompt_tokens")
        if self.structured_outputs is not None:
            self.structured_outputs.check()
        if self.spaces_between_special_tokens and not self.skip_special_tokens:
            param = "spaces_between_special_tokens"
            raise InvalidParameter(f"Invalid '{param}': special tokens are joined without spaces.", param=param)


_SHARED_OPTIONS = SharedFields.model_fields.keys() & {option.name for option in fields(Options)}


class StreamOptions(WireObject):
    """What a stream carries in addition to the text."""

    hints: ClassVar[NeutralValues] = {"include_obfuscation": (False,)}

    include_usage: bool = False
    """Whether the last event of a stream carries the token counts."""
    continuous_usage_stats: bool = False
    """vLLM's: whether every event of the stream carries the token counts so far."""


class GenerationRequest(SharedFields):
    """The fields that chats and completions share."""

    remedies: ClassVar[Mapping[str, str]] = REMEDIES
    own_limits: ClassVar[tuple[str, ...]] = ("max_tokens",)

    model: str = Field(max_length=MAX_NAME_CHARS)
    max_tokens: MaxTokens = None
    """The most tokens of one choice; -1, or more than there is room for: the rest of the context. Without it: 16 for a
    text; for a chat, the rest."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    """What the stream carries besides the text."""
    user: str | None = None
    return_tokens_as_token_ids: bool = False
    """vLLM's: log-probabilities name tokens as `token_id:ID`."""
    return_token_ids: bool = False
    """vLLM's: whether to return the token ids of prompt and answer too."""
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """vLLM's: alternatives to return for each token of the prompt; not in streams."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        return with_own_names(document, "max_tokens", own_limits=cls.own_limits)

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def includes_usage_so_far(self) -> bool:
        """Whether every chunk of the stream has the token counts."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def format(self) -> AnswerFormat | None:
        """The form of the answer's text; None for any."""
        return None if self.structured_outputs is None else self.structured_outputs.as_format()

    def options(self) -> Options:
        """Return how the answer is sampled, when it ends, and what comes with it."""
        raise NotImplementedError

    @override
    def check_consistency(self) -> None:
        """Refuse prompt log-probabilities, which no chunk carries, with a stream."""
        super().check_consistency()
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidParameter("'prompt_logprobs' is not allowed when 'stream' is true.", param="prompt_logprobs")
