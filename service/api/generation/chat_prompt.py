"""The messages of a chat to its prompt: what the template gets, the rendered text, its token ids."""

import secrets
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, Protocol

from pydantic_core import from_json

from service.api.generation.as_sent import as_sent, with_content, with_parameters
from service.api.generation.rendering import NO_VARIABLES, template_variables
from service.api.generation.sealed import OwnTexts
from service.api.schema.chat import ROLES, ChatCompletionRequest, ContentPart, MeantChat, Message, OwnThinking
from service.api.schema.open_calls import OpenCall, OpenCalls
from service.api.schema.template import TemplateFields
from service.api.schema.token_ids import TokenIds
from service.api.schema.tokenize import TokenizeRequest
from service.api.schema.tools import Tool
from service.api.schema.wire import checked
from service.errors import (
    ContextLengthExceeded,
    InvalidParameter,
    MissingParameter,
    TemplateFailed,
    UnsupportedParameter,
)
from service.text.chat_template import ChatTemplate, marked
from service.text.formats.format import Format
from service.text.formats.history import KnownIds, one_call_a_message
from service.text.prompt_model import PromptModel

END_CHARS = 64
SHOWING_ROLES = ("user", "tool")
INSTRUCTING_ROLES = ("system", "developer")


class ChatPrompt(NamedTuple):
    """A rendered chat."""

    end: str  # the last characters, without space behind them
    ids: TokenIds
    ignored: Sequence[str] = ()  # fields that the template has no use for
    images: Sequence[int] = ()  # which of the chat's it has, if older turns were left out
    shared_len: int = 0  # leading tokens that are its instructions and tools; 0 of a model to which that is nothing


class ImageSource(NamedTuple):
    """An image of a chat, as the client sent it."""

    url: str
    detail: str
    param: str  # the field that it came from


class MeansChat(Protocol):
    """A body of another interface."""

    def as_chat(self, own_thinking: OwnThinking) -> MeantChat:
        """Return the chat that has the same answer."""
        ...


def image_sources(
    body: ChatCompletionRequest | TokenizeRequest | MeansChat, model: PromptModel, *, key: bytes = b""
) -> list[ImageSource]:
    """Return the images of a chat, in order; arguments as of `chat_prompt`.

    Raises:
        UnsupportedParameter: a message has one that is neither the user's nor a tool's.
    """
    chat = body if isinstance(body, ChatCompletionRequest | TokenizeRequest) else chat_of(body, key=key)
    sources = []
    for index, message in enumerate(chat.messages or ()):
        for number, part in enumerate(message.content or ()):
            if part.image_url is not None:
                param = f"messages[{index}].content[{number}]"
                if message.role not in SHOWING_ROLES:
                    reason = "only messages of the user and results of tools have images."
                    raise UnsupportedParameter(f"{param}.type", reason)
                sources.append(ImageSource(part.image_url.url, part.image_url.detail, f"{param}.image_url"))
    return sources


def chat_prompt(
    body: ChatCompletionRequest | MeansChat,
    model: PromptModel,
    *,
    key: bytes = b"",
    images: Sequence[str] | None = None,
) -> ChatPrompt:
    """Return a chat's prompt.

    Args:
        body: the chat, or a body of another interface that means one.
        model: the model that answers.
        key: signs the client's thinking.
        images: what takes the place of each image of the chat; None where images are not read.

    Raises:
        ContextLengthExceeded: the context has fewer tokens than the chat has messages, or the prompt has.
        InvalidParameter, UnsupportedParameter, MissingParameter, TemplateFailed: as `rendered`.
    """
    if not isinstance(body, ChatCompletionRequest):
        body = chat_of(body, key=key)
    if body.truncation == "auto" and not body.truncate_prompt_tokens:
        return _fitting(body, model, images)
    return _prompt(body, body.messages, model, images)


def chat_of(body: MeansChat, *, key: bytes = b"") -> ChatCompletionRequest:
    """Return the chat that a body of another interface means.

    Args:
        body: the other interface's body.
        key: signs the client's thinking.

    Raises:
        RequestError: as `checked` does.
    """
    return checked(ChatCompletionRequest, *body.as_chat(OwnTexts(key).read))


def _prompt(
    body: ChatCompletionRequest, messages: Sequence[Message], model: PromptModel, images: Sequence[str] | None
) -> ChatPrompt:
    num_messages, max_model_len = len(messages), model.max_model_len
    if num_messages > max_model_len and not body.truncate_prompt_tokens:  # rendering them takes long
        raise ContextLengthExceeded(
            prompt_tokens=num_messages, max_tokens=0, max_model_len=max_model_len, param="messages", is_estimate=True
        )
    numbers = _image_numbers(body.messages, messages)
    shown = None if images is None else [images[number] for number in numbers]
    text, ignored = rendered(messages, model, body.tools if body.may_call_tools else (), body, shown)
    # The template has written the special tokens already.
    prompt_ids = model.tokenizer.encode(
        text,
        add_special_tokens=False,
        param="messages",
        max_model_len=None if body.truncate_prompt_tokens else max_model_len,
    )
    if numbers and body.truncate_prompt_tokens:
        raise UnsupportedParameter("truncate_prompt_tokens", "a prompt with images is not cut. Leave it out.")
    kept_ids = body.truncated(prompt_ids, max_model_len)
    is_whole = len(kept_ids) == len(prompt_ids)
    shared_len = _shared_len(text, messages, prompt_ids, model) if is_whole and model.keeps_states else 0
    return ChatPrompt(text.rstrip()[-END_CHARS:], array("i", kept_ids), ignored, numbers, shared_len)


def _shared_len(text: str, messages: Sequence[Message], prompt_ids: TokenIds, model: PromptModel) -> int:
    """Return how many leading tokens of a prompt are before its first turn: instructions, tools and what begins it."""
    end = _end_of_instructions(text, messages)
    beginning = model.tokenizer.encode(text[:end], add_special_tokens=False, param="messages")
    differing = (place for place, pair in enumerate(zip(beginning, prompt_ids, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(beginning), len(prompt_ids)))


def _end_of_instructions(text: str, messages: Sequence[Message]) -> int:
    """Return where the words of a chat's first turn begin in its text, or a place before; templates may strip them."""
    num_before = next((i for i, message in enumerate(messages) if message.role not in INSTRUCTING_ROLES), len(messages))
    words, end = ["".join(part.text for part in message.content or ()).strip() for message in messages], 0
    for own in words[:num_before]:
        place = text.find(own, end)
        end = end if place < 0 else place + len(own)
    if num_before == len(messages) or not words[num_before]:
        return end
    # The words of an only turn may stand in the tools before it, but nothing follows them that a client wrote.
    find = text.rfind if num_before == len(messages) - 1 else text.find
    return max(end, find(words[num_before], end))


def _image_numbers(messages: Sequence[Message], kept: Sequence[Message]) -> list[int]:
    """Return which of the images of a chat are those of the messages that are kept."""
    kept_ids = {id(message) for message in kept}
    owners = [id(message) for message in messages for part in message.content or () if part.image_url is not None]
    return [number for number, owner in enumerate(owners) if owner in kept_ids]


def _has_image(message: Message) -> bool:
    return any(part.image_url is not None for part in message.content or ())


def _fitting(body: ChatCompletionRequest, model: PromptModel, images: Sequence[str] | None) -> ChatPrompt:
    """Return the prompt without the oldest turns, as few as leave room for an answer, and whether any are missing."""
    turns = [index for index, message in enumerate(body.messages) if message.role == "user"]

    def fitting(num_dropped: int) -> ChatPrompt | None:
        messages = body.messages if num_dropped == 0 else _from(body.messages, turns[num_dropped])
        try:
            prompt = _prompt(body, messages, model, images)
        except ContextLengthExceeded:
            if num_dropped >= len(turns) - 1:
                raise
            return None
        return prompt if len(prompt.ids) < model.max_model_len or num_dropped >= len(turns) - 1 else None

    if (whole := fitting(0)) is not None:
        return whole
    fewest = bisect_left(range(len(turns) - 1), True, lo=1, key=lambda num_dropped: fitting(num_dropped) is not None)
    prompt = fitting(fewest)
    assert prompt is not None, "the last turn is never dropped"
    return prompt._replace(ignored=[*prompt.ignored, "messages"])


def _from(messages: Sequence[Message], start: int) -> list[Message]:
    """Return the instructions at the head of a chat, and what begins at `start`, without results of calls before it."""
    head = next(i for i, message in enumerate(messages) if message.role not in INSTRUCTING_ROLES)
    calls, kept = OpenCalls(), []
    for index, message in enumerate([*messages[:head], *messages[start:]]):
        for call in message.tool_calls or ():
            calls.add(index, call.id, call.function.name)
        if message.role != "tool" or calls.answer(message.tool_call_id, message.name) is not None:
            kept.append(message)
    return kept


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as chat templates expect them: plain text, known roles, tool arguments as objects.

    Arguments that are no JSON object, such as those that a limit has cut, stay the text that they are.

    Raises:
        MissingParameter: a message has no content.
        InvalidParameter: a message has a field that its role cannot have.
    """
    calls, turns = OpenCalls(), list[dict[str, Any]]()
    for index, message in enumerate(messages):
        turn = _template_message(message, f"messages[{index}]")
        if message.role == "tool":
            answered = calls.answer(message.tool_call_id, message.name)
            call_id = message.tool_call_id if answered is None else answered.id
            # Templates of the Hermes family name the function with its result.
            name = message.name if answered is None or message.name is not None else answered.name
            turn |= {"tool_call_id": call_id} | ({} if name is None else {"name": name})
        if message.tool_calls:
            turn["tool_calls"] = [
                _template_call(calls.add(index, call.id, call.function.name), call.function.arguments)
                for call in message.tool_calls
            ]
        turns.append(turn)
    return turns


def _template_message(message: Message, path: str) -> dict[str, Any]:
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
        "content": _template_content(message.content or ()),
    }
    if message.name is not None:
        fields["name"] = message.name
    if (thinking := message.thinking) is not None:
        fields["reasoning_content"] = thinking
    return fields


def _template_content(parts: Sequence[ContentPart]) -> str | list[dict[str, str]]:
    """Return the text of a message, or its parts if it has an image."""
    if all(part.image_url is None for part in parts):
        return "".join(part.text for part in parts)
    return [{"type": "image"} if part.image_url is not None else _text_part(part.text) for part in parts]


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _template_call(call: OpenCall, arguments: str) -> dict[str, Any]:
    try:
        parsed = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        parsed = None
    stated = parsed if isinstance(parsed, dict) else arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": stated}}


def _without_images_of_results(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
    """Return the messages of a text-only model without the images of results, and what was left out."""
    kept, left_out = list[Message](), list[str]()
    for index, message in enumerate(messages):
        texts = [part for part in message.content or () if part.image_url is None]
        if message.role != "tool" or len(texts) == len(message.content or ()):
            kept.append(message)
        else:
            kept.append(message.model_copy(update={"content": texts}))
            left_out.append(f"messages[{index}].content[].image_url")
    return kept, left_out[:1]


def _with_written_images(messages: Sequence[Message], template: ChatTemplate, placeholder: str) -> Sequence[Message]:
    """Return a chat in which the user shows what results of tools show, next after them, if they cannot."""
    has_some = any(message.role == "tool" and _has_image(message) for message in messages)
    if not has_some or template.writes_images_of_results(placeholder):
        return messages
    changed, images = list[Message](), list[ContentPart]()
    for message in messages:
        parts = message.content or ()
        if message.role == "tool":
            images += [part for part in parts if part.image_url is not None]
            texts = [part for part in parts if part.image_url is None]
            changed.append(message.model_copy(update={"content": texts}) if _has_image(message) else message)
        elif images and message.role == "user":
            changed.append(message.model_copy(update={"content": [*images, *parts]}))
            images = []
        else:
            if images:
                changed.append(Message(role="user", content=images))
                images = []
            changed.append(message)
    return [*changed, Message(role="user", content=images)] if images else changed


def _with_late_system_as_user(turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a chat in which a system's message after the first is part of the user's turn there."""
    result: list[dict[str, Any]] = []
    was_late = False
    for index, turn in enumerate(turns):
        is_late = index > 0 and turn["role"] == "system"
        role = "user" if is_late else turn["role"]
        if result and role == result[-1]["role"] == "user" and (is_late or was_late):
            result[-1] = result[-1] | {"content": _joined(result[-1]["content"], turn["content"])}
        else:
            result.append(turn | {"role": role})
        was_late = is_late
    return result


def _joined(one: str | list[dict[str, str]], other: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
    """Return the contents of two messages as one."""
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}\n\n{other}"
    return [*_as_parts(one), _text_part("\n\n"), *_as_parts(other)]


def _as_parts(content: str | list[dict[str, str]]) -> list[dict[str, str]]:
    return [_text_part(content)] if isinstance(content, str) else content


class RenderedChat(NamedTuple):
    """A chat as text."""

    text: str  # special tokens included
    ignored: Sequence[str]  # fields that the template has no use for


def rendered(
    messages: Sequence[Message],
    model: PromptModel,
    tools: Sequence[Tool],
    fields: TemplateFields,
    images: Sequence[str] | None = None,
) -> RenderedChat:
    """Return the prompt that a chat's messages and tools make.

    Args:
        messages: the chat.
        model: the model that answers.
        tools: what it may call.
        fields: the request's fields about rendering.
        images: what takes the place of each image; None where images are not read.

    Raises:
        InvalidParameter: the model has no template, the template refuses the messages, or a text stands for an image.
        UnsupportedParameter: the template has no place for tools, or the model none for images.
        TemplateFailed: the template takes too long.
        RequestError: another field stands for an image.
    """
    try:
        return _rendered(messages, model, tools, fields, images)
    except TemplateFailed as error:
        raise TemplateFailed(error.reason, model.name) from error


def _rendered(
    messages: Sequence[Message],
    model: PromptModel,
    tools: Sequence[Tool],
    fields: TemplateFields,
    images: Sequence[str] | None,
) -> RenderedChat:
    if model.chat_template is None:
        raise InvalidParameter(
            f"The model '{model.name}' has no chat template, so it takes no messages. "
            "Send a 'prompt' to /v1/completions.",
            param="messages",
        )
    template = _chosen(model.chat_template, tools, fields)
    variables, ignored = NO_VARIABLES
    if fields.sets_variables:
        variables, ignored = template_variables(fields, template)
    left_out = list[str]()
    if model.images is None:
        messages, left_out = _without_images_of_results(messages)
    _check_images(messages, model, can_see=images is not None)
    if model.images is not None:
        messages = _with_written_images(messages, template, model.images.placeholder)
    turns = _turns(messages, template)
    shown = [tool.for_template() for tool in tools]
    render = partial(
        template.render,
        documents=fields.documents,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        variables=variables,
    )
    try:
        text = render(turns, tools=shown)
    except InvalidParameter:
        complete = list(map(with_content, turns)), list(map(with_parameters, shown))
        if complete == (turns, shown):
            raise
        turns, shown = complete
        text = render(turns, tools=shown)
    unsure = {turn["role"] for turn in turns} - ROLES
    if any(turn["role"] == "tool" for turn in turns) and not template.writes_results:
        unsure.add("tool")
    if unsure:
        _check_roles([message.role for message in messages], turns, unsure, partial(render, tools=shown))
    if model.images is not None:
        text = model.images.expanded(text, images or ())
    return RenderedChat(text, [*ignored, *left_out])


def _chosen(template: ChatTemplate, tools: Sequence[Tool], fields: TemplateFields) -> ChatTemplate:
    """Return the one of a model's templates that is for the request, if it writes all that the request brings."""
    chosen = template.chosen(has_tools=bool(tools), has_documents=bool(fields.documents))
    if tools and chosen.tool_format is None:
        message = "the model's chat template does not render tools. Describe them in a message."
        raise UnsupportedParameter("tools", message)
    if fields.documents and not chosen.reads_documents:
        message = "the model's chat template does not render documents. Put their texts into a message."
        raise UnsupportedParameter("documents", message)
    return chosen


def _turns(messages: Sequence[Message], template: ChatTemplate) -> list[dict[str, Any]]:
    """Return the messages as the client sent them, as far as the template can write them so."""
    turns = [
        as_sent(turn, message, template) for turn, message in zip(template_messages(messages), messages, strict=True)
    ]
    if any(turn["role"] == "system" for turn in turns[1:]) and not template.takes_late_system:
        turns = _with_late_system_as_user(turns)
    if messages[0].role == "developer" and template.knows_developer:
        turns[0]["role"] = "developer"
    if template.reads_parts_alone:
        turns = [turn | {"content": _as_parts(turn.get("content", ""))} for turn in turns]
    turns = _with_known_arguments(turns, template)
    return one_call_a_message(turns) if template.format.has_headers else turns


def _with_known_arguments(turns: Sequence[dict[str, Any]], template: ChatTemplate) -> list[dict[str, Any]]:
    """Return a chat whose calls have arguments that the template can write, and short ids if it takes no others."""
    tool_format = template.tool_format
    ids = KnownIds("" if tool_format is None else tool_format.id_form)
    result: list[dict[str, Any]] = []
    for turn in turns:
        known = dict(turn)
        if "tool_call_id" in turn:
            known["tool_call_id"] = ids.of_result(turn["tool_call_id"])
        if turn.get("tool_calls") and tool_format is not None and not template.writes_calls:
            known = _with_calls_as_text(turn, tool_format)
        elif "tool_calls" in turn:
            known["tool_calls"] = [
                call
                | {"id": ids.of_call(call["id"], call["function"]["name"])}
                | {"function": _with_written_arguments(call["function"], template)}
                for call in turn["tool_calls"]
            ]
        result.append(known)
    return result


def _with_calls_as_text(turn: Mapping[str, Any], tool_format: Format) -> dict[str, Any]:
    """Return a message whose content ends with its calls, for a template that would drop them."""
    functions = [call["function"] for call in turn["tool_calls"]]
    calls = tool_format.calls[0].written([(f["name"], f["arguments"]) for f in functions])
    content = turn.get("content") or ""
    others = {key: value for key, value in turn.items() if key != "tool_calls"}
    return others | {"content": _joined(content, calls) if content else calls}


def _with_written_arguments(function: dict[str, Any], template: ChatTemplate) -> dict[str, Any]:
    """Return a call whose arguments are an object, unless the template writes a text as it is."""
    arguments = function["arguments"]
    if isinstance(arguments, dict) or template.writes_text_arguments:
        return function
    try:
        begun = from_json(arguments, allow_inf_nan=False, allow_partial="trailing-strings")
    except ValueError:
        begun = arguments
    return function | {"arguments": begun if isinstance(begun, dict) else {"arguments": begun}}


def _check_roles(
    roles: Sequence[str],
    turns: Sequence[dict[str, Any]],
    unsure: Set[str],
    render: Callable[[list[dict[str, Any]]], str],
) -> None:
    """Check that the template does not drop messages of roles that not every template writes.

    Args:
        roles: of the request's messages.
        turns: what the template gets.
        unsure: the roles to check.
        render: returns the prompt.

    Raises:
        InvalidParameter: it drops one.
    """
    marks = {index: secrets.token_hex(16) for index, turn in enumerate(turns) if turn["role"] in unsure}
    text = render(
        [
            turn | ({"content": marked(turn.get("content", ""), marks[i])} if i in marks else {})
            for i, turn in enumerate(turns)
        ]
    )
    for index, mark in marks.items():
        if mark not in text:
            role = turns[index]["role"]
            param = f"messages[{roles.index(role)}].role"
            message = f"Invalid '{param}': the model's chat template does not write messages of the role '{role}'."
            raise InvalidParameter(message, param=param)


def _check_images(messages: Sequence[Message], model: PromptModel, *, can_see: bool) -> None:
    """Check that a chat has images only where they are seen, and that no text stands for one."""
    if model.images is None and not any(map(_has_image, messages)):
        return
    for index, message in enumerate(messages):
        for number, part in enumerate(message.content or ()):
            param = f"messages[{index}].content[{number}]"
            if part.image_url is None:
                if model.images is not None:
                    model.images.check_text(part.text, f"{param}.text")
            elif model.images is None:
                # Defends against T18.
                raise UnsupportedParameter(f"{param}.type", f"the model '{model.name}' reads only text.")
            elif not can_see:
                raise UnsupportedParameter(f"{param}.type", "this route reads only text.")
