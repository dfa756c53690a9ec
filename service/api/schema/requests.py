"""What clients may ask, under OpenAI's names: strict types and closed ranges.

A number is a number (neither `true` nor `"1"`), finite, and in the range that is written here. Fields that are known
but not served stand in `unsupported_fields`; all others are refused.
Source: https://platform.openai.com/docs/api-reference/chat/create, .../completions/create
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from service.api.schema import unsupported as unsupported_fields
from service.api.schema.sampling import INT64_MAX, MAX_CHOICES, SamplingFields
from service.api.schema.unsupported import NeutralValues
from service.api.schema.wire import WireObject
from service.engine.request import MAX_LOGPROBS
from service.errors import InvalidParameter

MAX_PROMPTS = 64
MAX_SEQUENCES = 64  # prompts times choices
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024
MAX_NAME_CHARS = 512


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Take one text or one list of token ids, or a list of these.

    Raises:
        InvalidParameter: it is neither, or there are too many.
    """
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
        raise InvalidParameter(f"Invalid '{param}': it must be a text or a list of token ids.", param=param)
    for i, token_id in enumerate(value):
        if type(token_id) is not int:
            raise InvalidParameter(f"Invalid '{param}[{i}]': it must be a token id.", param=f"{param}[{i}]")
    return tuple(value)


class StreamOptions(WireObject):
    """What a stream carries besides the text."""

    neutral_values: ClassVar[NeutralValues] = unsupported_fields.STREAM_OPTIONS

    include_usage: bool = False


class GenerationRequest(SamplingFields):
    """What chats and completions have in common."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"stream_options": StreamOptions}

    model: str = Field(max_length=MAX_NAME_CHARS)
    max_tokens: int | None = Field(default=None, ge=1, le=INT64_MAX)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
        Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
        BeforeValidator(_as_list),
    ] = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)  # vLLM's: the lower, the sooner
    return_token_ids: bool = False  # vLLM's: the token ids of prompt and completion beside the text
    # vLLM's: alternatives told for each token of the prompt, 0 for its own log-probability alone.
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def asked_max_tokens(self) -> tuple[int | None, str]:
        """The completion's limit, if one was given, and the field that gave it."""
        return self.max_tokens, "max_tokens"

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives are told for each token, 0 for its own log-probability alone; None for nothing."""
        raise NotImplementedError

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for the tokens of the prompt, as many as anything in the answer needs."""
        return self.prompt_logprobs

    def refuse_contradictions(self) -> None:
        """Check fields against each other.

        Raises:
            InvalidParameter: two fields contradict.
        """
        if self.stream_options is not None and not self.stream:
            raise InvalidParameter("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidParameter("'prompt_logprobs' is not allowed when 'stream' is true.", param="prompt_logprobs")


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    neutral_values: ClassVar[NeutralValues] = unsupported_fields.COMPLETIONS

    prompt: Annotated[tuple[str | tuple[int, ...], ...], PlainValidator(_prompts)]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)  # OpenAI allows 5
    echo: bool = False
    best_of: int | None = Field(default=None, ge=1, le=MAX_CHOICES)

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives are told for each token, 0 for its own log-probability alone; None for nothing."""
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for the tokens of the prompt, as many as anything in the answer needs."""
        wishes = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((wish for wish in wishes if wish is not None), default=None)

    def refuse_contradictions(self) -> None:
        """Check fields against each other.

        Raises:
            InvalidParameter: two fields contradict.
        """
        super().refuse_contradictions()
        if self.best_of not in (None, self.n):
            raise InvalidParameter("'best_of' must equal 'n': all sequences are returned.", param="best_of")
        if len(self.prompt) * self.n > MAX_SEQUENCES:
            message = f"{len(self.prompt)} prompts times n = {self.n} are over the limit of {MAX_SEQUENCES} sequences."
            raise InvalidParameter(message, param="n")


class TextPart(WireObject):
    """One part of a message; images, sound and files are not served."""

    type: Literal["text"]
    text: str


class FunctionCall(WireObject):
    """What the assistant called, earlier in the conversation."""

    name: str
    arguments: str  # a JSON object, as text


class ToolCall(WireObject):
    """A call of the assistant's, earlier in the conversation."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(WireObject):
    """One turn of a conversation."""

    neutral_values: ClassVar[NeutralValues] = unsupported_fields.MESSAGE

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[TextPart], Field(fail_fast=True), BeforeValidator(_as_parts)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None


class ChatCompletionRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    neutral_values: ClassVar[NeutralValues] = unsupported_fields.CHAT
    nested: ClassVar[dict[str, type[WireObject]]] = {"stream_options": StreamOptions, "messages": Message}

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: int | None = Field(default=None, ge=1, le=INT64_MAX)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)

    @property
    def asked_max_tokens(self) -> tuple[int | None, str]:
        """The completion's limit, if one was given, and the field that gave it."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives are told for each token, 0 for its own log-probability alone; None for nothing."""
        return self.top_logprobs if self.logprobs else None

    def refuse_contradictions(self) -> None:
        """Check fields against each other.

        Raises:
            InvalidParameter: two fields contradict.
        """
        super().refuse_contradictions()
        if self.top_logprobs and not self.logprobs:
            raise InvalidParameter("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise InvalidParameter("'max_tokens' contradicts 'max_completion_tokens'; send one.", param="max_tokens")
