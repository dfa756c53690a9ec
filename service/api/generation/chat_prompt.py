"""The messages of a chat to its prompt: what the template gets, the rendered text, its token ids."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic_core import from_json

from service.api.generation.rendering import NO_VARIABLES, template_variables
from service.api.schema.chat import ChatCompletionRequest, Message, ToolCall
from service.api.schema.template import TemplateFields
from service.api.schema.tools import Tool
from service.api.schema.wire import checked
from service.errors import ContextLengthExceeded, InvalidParameter, MissingParameter, UnsupportedParameter
from service.text.prompt_model import PromptModel

END_CHARS = 64


class ChatPrompt(NamedTuple):
    """A rendered chat."""

    end: str  # the last characters, without space behind them
    ids: Sequence[int]
    ignored: Sequence[str] = ()  # fields that the template has no use for


class MeansChat(Protocol):
    """A body of another interface."""

    def as_chat(self) -> dict[str, Any]:
        """Return the body of the chat that has the same answer."""
        ...


def chat_prompt(body: ChatCompletionRequest | MeansChat, model: PromptModel) -> ChatPrompt:
    """Return a chat's prompt.

    Raises:
        ContextLengthExceeded: the context has fewer tokens than the chat has messages, or the prompt has.
        InvalidParameter, UnsupportedParameter, MissingParameter, TemplateFailed: as `rendered`.
    """
    if not isinstance(body, ChatCompletionRequest):
        body = chat_of(body)
    num_messages, limit_tokens = len(body.messages), model.max_model_len
    if num_messages > limit_tokens and not body.truncate_prompt_tokens:  # rendering so many takes long
        raise ContextLengthExceeded(
            prompt_tokens=num_messages, max_tokens=0, limit_tokens=limit_tokens, param="messages", is_estimate=True
        )
    text, ignored = rendered(body.messages, model, body.tools if body.may_call_tools else (), body)
    # The template has written the special tokens already.
    prompt_ids = model.tokenizer.encode(
        text,
        add_special_tokens=False,
        param="messages",
        limit_tokens=None if body.truncate_prompt_tokens else limit_tokens,
    )
    # As an array, which passes from process to process in one piece.
    return ChatPrompt(text.rstrip()[-END_CHARS:], array("i", body.truncated(prompt_ids, limit_tokens)), ignored)


def chat_of(body: MeansChat) -> ChatCompletionRequest:
    """Return the chat that a body of another interface means; raises what `checked` raises."""
    return checked(ChatCompletionRequest, body.as_chat())


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as chat templates expect them: plain text, known roles, tool arguments as objects.

    Raises:
        MissingParameter: a message has no content.
        InvalidParameter: a message has a field that its role cannot have, or malformed tool arguments.
    """
    names = {call.id: call.function.name for message in messages for call in message.tool_calls or ()}
    return [_template_message(message, f"messages[{i}]", names) for i, message in enumerate(messages)]


def _template_message(message: Message, path: str, called: Mapping[str, str]) -> dict[str, Any]:
    is_assistant = message.role == "assistant"
    if message.tool_calls and not is_assistant:
        param = f"{path}.tool_calls"
        raise InvalidParameter(f"Invalid '{param}': only the assistant calls tools.", param=param)
    if message.tool_call_id is not None and message.role != "tool":
        param = f"{path}.tool_call_id"
        raise InvalidParameter(f"Invalid '{param}': only a tool answers a call.", param=param)
    if message.content is None and not is_assistant:
        raise MissingParameter(f"{path}.content")
    fields: dict[str, Any] = {
        # OpenAI renamed the role; templates know the old name.
        "role": "system" if message.role == "developer" else message.role,
        "content": "".join(part.text for part in message.content or ()),
    }
    # Templates of the Hermes family name the function with its result.
    name = message.name if message.name is not None else called.get(message.tool_call_id or "")
    if name is not None:
        fields["name"] = name
    if (thinking := message.thinking) is not None:
        if not is_assistant:
            param = f"{path}.reasoning_content"
            raise InvalidParameter(f"Invalid '{param}': only the assistant thinks.", param=param)
        fields["reasoning_content"] = thinking
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [
            _template_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
    return fields


def _template_call(call: ToolCall, path: str) -> dict[str, Any]:
    param = f"{path}.function.arguments"
    try:
        arguments = from_json(call.function.arguments, allow_inf_nan=False)
    except ValueError:
        raise InvalidParameter(f"Invalid '{param}': it must be JSON.", param=param) from None
    if not isinstance(arguments, dict):
        raise InvalidParameter(f"Invalid '{param}': it must be a JSON object.", param=param)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


class RenderedChat(NamedTuple):
    """A chat as text."""

    text: str  # special tokens included
    ignored: Sequence[str]  # fields that the template has no use for


def rendered(
    messages: Sequence[Message], model: PromptModel, tools: Sequence[Tool], fields: TemplateFields
) -> RenderedChat:
    """Return the prompt that a chat's messages and tools make.

    Raises:
        InvalidParameter: the model has no template, or the template refuses the messages.
        UnsupportedParameter: the template has no place for tools.
    """
    if model.chat_template is None:
        raise InvalidParameter(
            f"The model '{model.name}' has no chat template, so it takes no messages. "
            "Send a 'prompt' to /v1/completions.",
            param="messages",
        )
    if tools and model.chat_template.tool_format is None:
        message = "the model's chat template does not render tools. Describe them in a message."
        raise UnsupportedParameter("tools", message)
    variables, ignored = NO_VARIABLES
    if fields.sets_variables:
        variables, ignored = template_variables(fields, model.chat_template)
    text = model.chat_template.render(
        template_messages(messages),
        [tool.for_template() for tool in tools] or None,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        variables=variables,
    )
    return RenderedChat(text, ignored)
