"""The bodies of POST /tokenize and POST /detokenize.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#tokenizer-api
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, override

from pydantic import Field

from service.api.conversation import Conversation, Options, OwnThinking, check_tools
from service.api.schema.chat import Message, turns_of
from service.api.schema.generation import INT32_MAX, MAX_NAME_CHARS
from service.api.schema.template import TemplateFields
from service.api.schema.tools import MAX_TOOLS, Tool
from service.api.schema.wire import NeutralValues, WireObject
from service.errors import InvalidParameter, MissingParameter


class TokenizeRequest(TemplateFields):
    """The body of POST /tokenize: a text, or the messages of a chat."""

    hints: ClassVar[NeutralValues] = {"mm_processor_kwargs": ({},)}
    refused: ClassVar[NeutralValues] = {"chat_template": ()}
    bulk: ClassVar[Mapping[str, Any]] = {"messages": [{"role": "user"}], "prompt": ""}
    keeps_sent: ClassVar[tuple[str, ...]] = ("messages", "tools")

    model: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    prompt: str | None = None
    """What to continue: a text, token ids, or up to 64 of either."""
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its special tokens; the default is what a generation would do."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    return_token_strs: bool = False
    """Whether to return the tokens as the vocabulary writes them too."""

    @override
    def check_consistency(self) -> None:
        """Refuse a request with neither text nor messages, or with both."""
        if self.prompt is None and self.messages is None:
            raise MissingParameter("prompt")
        if self.prompt is not None and self.messages is not None:
            raise InvalidParameter("'messages' contradicts 'prompt'; send one.", param="messages")
        for name in ("tools", *TemplateFields.model_fields) if self.messages is None else ():
            default = type(self).model_fields[name].get_default(call_default_factory=True)
            if getattr(self, name) != default:
                raise InvalidParameter(f"'{name}' needs 'messages'.", param=name)
        self.check_rendering()
        check_tools([tool.as_tool(f"tools[{index}]") for index, tool in enumerate(self.tools)])

    def conversation(self, own_thinking: OwnThinking) -> Conversation:
        """Return what a chat asks for."""
        return Conversation(
            turns=turns_of(self.messages or ()),
            at="messages",
            options=Options(model=self.model or ""),
            tools=[tool.as_tool(f"tools[{index}]") for index, tool in enumerate(self.tools)],
            **self.rendering(),
        )


class DetokenizeRequest(WireObject):
    """The body of POST /detokenize."""

    bulk: ClassVar[Mapping[str, Any]] = {"tokens": []}

    model: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(fail_fast=True)]
    """The token ids."""
