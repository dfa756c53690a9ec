"""The body of POST /v1/completions: its fields by the rule of `wire`.

Source: https://platform.openai.com/docs/api-reference/completions/create
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, override

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from service.api.conversation import INT64_MAX, Continuation, Options
from service.api.schema.generation import (
    HINTS,
    MAX_CHOICES,
    REFUSED,
    REMEDIES,
    GenerationRequest,
    limit_of_tokens,
)
from service.api.schema.wire import NeutralValues
from service.engine.limits import MAX_LOGPROBS
from service.engine.request import MAX_SEQUENCES
from service.errors import InvalidParameter

MAX_PROMPTS = 64

_REFUSED: NeutralValues = {**REFUSED, "prompt_embeds": (), "response_format": ({"type": "text"},)}
_HINTS: NeutralValues = {**HINTS, "add_special_tokens": (True,), "metadata": ({},), "store": (False,)}
_REMEDIES = {**REMEDIES, "response_format": "send 'structured_outputs'."}

_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
PROMPT = {
    "anyOf": [
        {"type": "string"},
        _TOKEN_IDS,
        {"type": "array", "items": {"anyOf": [{"type": "string"}, _TOKEN_IDS]}, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Return the prompts of a text, a list of token ids, or a list of either."""
    if not (isinstance(value, list) and value and isinstance(value[0], str | list)):
        return (_prompt(value, "prompt"),)
    if len(value) > MAX_PROMPTS:
        message = f"Invalid 'prompt': {len(value)} prompts are over the limit of {MAX_PROMPTS}."
        raise InvalidParameter(message, param="prompt")
    if len(value) == 1:
        return (_prompt(value[0], "prompt"),)
    return tuple(_prompt(prompt, f"prompt[{i}]") for i, prompt in enumerate(value))


def _prompt(value: Any, param: str) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidParameter(f"Invalid '{param}': it must be a string or a list of token ids.", param=param)
    for i, token_id in enumerate(value):
        if type(token_id) is not int:
            raise InvalidParameter(f"Invalid '{param}[{i}]': it must be a token id.", param=f"{param}[{i}]")
    return tuple(value)


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    hints: ClassVar[NeutralValues] = _HINTS
    refused: ClassVar[NeutralValues] = _REFUSED
    remedies: ClassVar[Mapping[str, str]] = _REMEDIES
    bulk: ClassVar[Mapping[str, Any]] = {"prompt": ""}

    prompt: Annotated[tuple[str | tuple[int, ...], ...], PlainValidator(_prompts), WithJsonSchema(PROMPT)]
    """What to continue: a text, token ids, or up to 64 of either."""
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)  # OpenAI allows 5
    """How many alternatives to return for each token; 0 for its own log-probability."""
    echo: bool = False
    """Whether the answer begins with the prompt; with `logprobs`, the prompt's log-probabilities too."""
    max_tokens: Annotated[
        int | None,
        Field(ge=0, le=INT64_MAX),
        BeforeValidator(limit_of_tokens),
        WithJsonSchema({"type": "integer", "minimum": -1, "maximum": INT64_MAX}),
    ] = None
    """The most tokens of one choice, 16 without it. With `echo`, 0 scores the prompt."""
    suffix: str | None = None
    """The text after a gap that the answer fills, if the tokenizer marks gaps, else refused; not in `echo`."""
    best_of: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    """Must equal `n`: every sequence is returned."""

    @override
    def light_json(self) -> bytes:
        return self.json_with({}) if self.echo else super().light_json()

    @override
    def options(self) -> Options:
        nums = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return Options(
            **self.shared_options(),
            model=self.model,
            stream=self.stream,
            user=self.user,
            format=self.format,
            max_tokens=self.max_tokens,
            num_logprobs=self.logprobs,
            num_prompt_logprobs=max((num for num in nums if num is not None), default=None),
        )

    def continuation(self) -> Continuation:
        """Return what the request asks for."""
        return Continuation(prompts=self.prompt, options=self.options(), suffix=self.suffix or "")

    @override
    def check_consistency(self) -> None:
        """Refuse what no single check of a field sees: unequal `best_of` and `n`, and too many sequences in all."""
        super().check_consistency()
        for name, is_set in (
            ("truncate_prompt_tokens", self.truncate_prompt_tokens is not None),
            ("skip_special_tokens", not self.skip_special_tokens),
        ):
            if self.echo and is_set:
                raise InvalidParameter(f"'{name}' contradicts 'echo', which returns the prompt as it is.", param=name)
        if self.suffix and self.truncate_prompt_tokens is not None:
            message = "'truncate_prompt_tokens' contradicts 'suffix', which is part of the prompt."
            raise InvalidParameter(message, param="truncate_prompt_tokens")
        if self.suffix and self.echo and self.logprobs is not None:
            message = "'logprobs' with 'echo' contradicts 'suffix': the text before the gap is not the whole prompt."
            raise InvalidParameter(message, param="logprobs")
        if self.max_tokens == 0:
            self._check_scoring()
        if self.best_of not in (None, self.n):
            raise InvalidParameter("'best_of' must equal 'n': all sequences are returned.", param="best_of")
        # Defends against T6.
        if len(self.prompt) * self.n > MAX_SEQUENCES:
            message = f"{len(self.prompt)} prompts times n = {self.n} are over the limit of {MAX_SEQUENCES} sequences."
            raise InvalidParameter(message, param="n")

    def _check_scoring(self) -> None:
        if not self.echo:
            raise InvalidParameter("'max_tokens' can be 0 only if 'echo' is true.", param="max_tokens")
        if self.min_tokens:
            raise InvalidParameter("'min_tokens' contradicts 'max_tokens', which is 0.", param="min_tokens")
