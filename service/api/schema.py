"""What clients may ask, under OpenAI's names: strict types and closed ranges.

A number is a number (neither `true` nor `"1"`), finite, and in the range that is written here. Fields that are known
but not served stand in `unsupported_fields`; all others are refused.
Source: https://platform.openai.com/docs/api-reference/chat/create, .../completions/create
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from service.api import unsupported_fields
from service.api.unsupported_fields import NeutralValues
from service.errors import InvalidParameter, UnsupportedParameter

INT64_MAX = 2**63 - 1
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024
MAX_NAME_CHARS = 512


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _one_prompt(value: Any) -> str | tuple[int, ...]:
    """Take one text or one list of token ids, also as a list of one.

    Raises:
        UnsupportedParameter: there are several prompts.
        InvalidParameter: it is neither.
    """
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise UnsupportedParameter("prompt", "send one prompt in each request.")
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidParameter("Invalid 'prompt': it must be a text or a list of token ids.", param="prompt")
    for i, token_id in enumerate(value):
        if type(token_id) is not int:
            raise InvalidParameter(f"Invalid 'prompt[{i}]': it must be a token id.", param=f"prompt[{i}]")
    return tuple(value)


class WireObject(BaseModel):
    """A JSON object whose every field is known."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    neutral_values: ClassVar[NeutralValues] = {}
    nested: ClassVar[dict[str, "type[WireObject]"]] = {}


class StreamOptions(WireObject):
    """What a stream carries besides the text."""

    neutral_values: ClassVar[NeutralValues] = unsupported_fields.STREAM_OPTIONS

    include_usage: bool = False


class GenerationRequest(WireObject):
    """What chats and completions have in common."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"stream_options": StreamOptions}

    model: str = Field(max_length=MAX_NAME_CHARS)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=-(2**63), le=INT64_MAX)
    max_tokens: int | None = Field(default=None, ge=1, le=INT64_MAX)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
        Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
        BeforeValidator(_as_list),
    ] = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    ignore_eos: bool = False  # vLLM's: go on after the end of text
    return_token_ids: bool = False  # vLLM's: the token ids of prompt and completion beside the text

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def asked_max_tokens(self) -> tuple[int | None, str]:
        """The completion's limit, if one was given, and the field that gave it."""
        return self.max_tokens, "max_tokens"

    def refuse_contradictions(self) -> None:
        """Check fields against each other.

        Raises:
            InvalidParameter: two fields contradict.
        """
        if self.stream_options is not None and not self.stream:
            raise InvalidParameter("'stream_options' is only allowed when 'stream' is true.", param="stream_options")


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    neutral_values: ClassVar[NeutralValues] = unsupported_fields.COMPLETIONS

    prompt: Annotated[str | tuple[int, ...], PlainValidator(_one_prompt)]


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

    @property
    def asked_max_tokens(self) -> tuple[int | None, str]:
        """The completion's limit, if one was given, and the field that gave it."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    def refuse_contradictions(self) -> None:
        """Check fields against each other.

        Raises:
            InvalidParameter: two fields contradict.
        """
        super().refuse_contradictions()
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise InvalidParameter("'max_tokens' contradicts 'max_completion_tokens'; send one.", param="max_tokens")
