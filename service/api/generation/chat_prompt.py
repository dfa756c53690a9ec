"""The messages of a chat to its prompt: what the template gets, the rendered text, its token ids."""

import secrets
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from pydantic_core import from_json

from service.api.conversation import Conversation, ImagePart, OwnThinking, Part, TextPart, Turn
from service.api.generation.as_sent import as_sent, with_content, with_parameters
from service.api.generation.rendering import template_variables
from service.api.generation.sealed import OwnTexts
from service.api.open_calls import OpenCall, OpenCalls
from service.api.schema.chat import ROLES
from service.api.schema.token_ids import TokenIds
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
    ignored: Sequence[str] = ()  # fields that were not read, or that the template has no use for
    images: Sequence[int] = ()  # which of the chat's it has, if older turns were left out
    shared_len: int = 0  # leading tokens that are its instructions and tools; 0 of a model to which that is nothing
    continues_last: bool = False  # whether the answer goes on with its last turn


class Conversational(Protocol):
    """A body that asks for the answer to a conversation."""

    def conversation(self, own_thinking: OwnThinking) -> Conversation:
        """Return what it asks for."""
        ...


READ = "levserve.conversation"  # the entry of a body's attributes for its conversation


def conversation_of(body: Conversational, key: bytes) -> Conversation:
    """Return what a body asks for, which is read once.

    Args:
        body: the body; of a long one without its bulk, the conversation has everything but its turns.
        key: signs the client's thinking.

    Raises:
        RequestError: as `conversation` of the body does.
    """
    known: tuple[bytes, Conversation] | None = vars(body).get(READ)
    if known is None or known[0] != key:
        known = vars(body)[READ] = key, body.conversation(OwnTexts(key).read)
    return known[1]


def image_sources(body: Conversational, model: PromptModel, *, key: bytes) -> list[ImagePart]:
    """Return the images of a conversation, in order; arguments as of `chat_prompt`.

    Raises:
        UnsupportedParameter: a turn has one that is neither the user's nor a tool's.
    """
    images: list[ImagePart] = []
    for turn in conversation_of(body, key).turns:
        for image in turn.images:
            if turn.role not in SHOWING_ROLES:
                reason = "only messages of the user and results of tools have images."
                raise UnsupportedParameter(image.type_at, reason)
            images.append(image)
    return images


def chat_prompt(
    body: Conversational, model: PromptModel, *, key: bytes, images: Sequence[str] | None = None
) -> ChatPrompt:
    """Return a conversation's prompt.

    Args:
        body: what asks for its answer.
        model: the model that answers.
        key: signs the client's thinking.
        images: what takes the place of each image of the conversation; None where images are not read.

    Raises:
        ContextLengthExceeded: the context has fewer tokens than the conversation has turns, or the prompt has.
        InvalidParameter, UnsupportedParameter, MissingParameter, TemplateFailed: as `rendered`.
    """
    conversation = conversation_of(body, key)
    if conversation.drops_oldest and not conversation.options.truncate_prompt_tokens:
        return _fitting(conversation, model, images)
    return _prompt(conversation, model, images, list(range(len(images or ()))))


def _prompt(
    conversation: Conversation, model: PromptModel, images: Sequence[str] | None, numbers: Sequence[int]
) -> ChatPrompt:
    """Return a conversation's prompt, in which these are its images' numbers before turns were left out."""
    options, at, turns, max_model_len = conversation.options, conversation.at, conversation.turns, model.max_model_len
    if len(turns) > max_model_len and not options.truncate_prompt_tokens:  # rendering them takes long
        raise ContextLengthExceeded(
            prompt_tokens=len(turns), max_tokens=0, max_model_len=max_model_len, param=at, is_estimate=True
        )
    text, ignored = rendered(conversation, model, images)
    # The template has written the special tokens already.
    prompt_ids = model.tokenizer.encode(
        text,
        add_special_tokens=False,
        param=at,
        max_model_len=None if options.truncate_prompt_tokens else max_model_len,
    )
    if numbers and options.truncate_prompt_tokens:
        raise UnsupportedParameter("truncate_prompt_tokens", "a prompt with images is not cut. Leave it out.")
    kept_ids = options.truncated(prompt_ids, max_model_len)
    is_whole = len(kept_ids) == len(prompt_ids)
    shared_len = _shared_len(text, turns, prompt_ids, model) if is_whole and model.keeps_states else 0
    return ChatPrompt(
        text.rstrip()[-END_CHARS:],
        array("i", kept_ids),
        [*conversation.ignored, *ignored],
        numbers,
        shared_len,
        conversation.continues_last,
    )


def _shared_len(text: str, turns: Sequence[Turn], prompt_ids: TokenIds, model: PromptModel) -> int:
    """Return how many leading tokens of a prompt are before its first turn: instructions, tools and what begins it."""
    end = _end_of_instructions(text, turns)
    beginning = model.tokenizer.encode(text[:end], add_special_tokens=False, param="messages")
    differing = (place for place, pair in enumerate(zip(beginning, prompt_ids, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(beginning), len(prompt_ids)))


def _end_of_instructions(text: str, turns: Sequence[Turn]) -> int:
    """Return where the words of a chat's first turn begin in its text, or a place before; templates may strip them."""
    num_before = next((i for i, turn in enumerate(turns) if turn.role not in INSTRUCTING_ROLES), len(turns))
    words, end = ["".join(part.text for part in turn.texts).strip() for turn in turns], 0
    for own in words[:num_before]:
        place = text.find(own, end)
        end = end if place < 0 else place + len(own)
    if num_before == len(turns) or not words[num_before]:
        return end
    # The words of an only turn may stand in the tools before it, but nothing follows them that a client wrote.
    find = text.rfind if num_before == len(turns) - 1 else text.find
    return max(end, find(words[num_before], end))


def _image_numbers(turns: Sequence[Turn], kept: Sequence[Turn]) -> list[int]:
    """Return which of the images of a conversation are those of the turns that are kept."""
    kept_ids = {id(turn) for turn in kept}
    owners = [id(turn) for turn in turns for _ in turn.images]
    return [number for number, owner in enumerate(owners) if owner in kept_ids]


def _fitting(conversation: Conversation, model: PromptModel, images: Sequence[str] | None) -> ChatPrompt:
    """Return the prompt without the oldest turns, as few as leave room for an answer, and whether any are missing."""
    turns = conversation.turns
    starts = [index for index, turn in enumerate(turns) if turn.role == "user"]

    def fitting(num_dropped: int) -> ChatPrompt | None:
        kept = turns if num_dropped == 0 else _from(turns, starts[num_dropped])
        numbers = _image_numbers(turns, kept)
        shown = None if images is None else [images[number] for number in numbers]
        try:
            prompt = _prompt(replace(conversation, turns=kept), model, shown, numbers)
        except ContextLengthExceeded:
            if num_dropped >= len(starts) - 1:
                raise
            return None
        return prompt if len(prompt.ids) < model.max_model_len or num_dropped >= len(starts) - 1 else None

    if (whole := fitting(0)) is not None:
        return whole
    fewest = bisect_left(range(len(starts) - 1), True, lo=1, key=lambda num_dropped: fitting(num_dropped) is not None)
    prompt = fitting(fewest)
    assert prompt is not None, "the last turn is never dropped"
    return prompt._replace(ignored=[*prompt.ignored, conversation.at])


def _from(turns: Sequence[Turn], start: int) -> list[Turn]:
    """Return the instructions at the head of a conversation, and what begins at `start`.

    Results of calls before it are left out.
    """
    head = next(i for i, turn in enumerate(turns) if turn.role not in INSTRUCTING_ROLES)
    calls, kept = OpenCalls(), []
    for index, turn in enumerate([*turns[:head], *turns[start:]]):
        for call in turn.calls:
            calls.add(index, call.id, call.name)
        if turn.role != "tool" or calls.answer(turn.call_id, turn.name) is not None:
            kept.append(turn)
    return kept


def template_messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return turns as chat templates expect them: plain text, known roles, tool arguments as objects.

    Arguments that are no JSON object, such as those that a limit has cut, stay the text that they are.

    Raises:
        MissingParameter: a turn has no content.
        InvalidParameter: a turn has a field that its role cannot have.
    """
    calls, messages = OpenCalls(), list[dict[str, Any]]()
    for index, turn in enumerate(turns):
        message = _template_message(turn)
        if turn.role == "tool":
            answered = calls.answer(turn.call_id, turn.name)
            call_id = turn.call_id if answered is None else answered.id
            # Templates of the Hermes family name the function with its result.
            name = turn.name if answered is None or turn.name is not None else answered.name
            message |= {"tool_call_id": call_id} | ({} if name is None else {"name": name})
        if turn.calls:
            message["tool_calls"] = [
                _template_call(calls.add(index, call.id, call.name), call.arguments) for call in turn.calls
            ]
        messages.append(message)
    return messages


def _template_message(turn: Turn) -> dict[str, Any]:
    is_assistant = turn.role == "assistant"
    if turn.calls and not is_assistant:
        param = turn.field("tool_calls")
        raise InvalidParameter(f"Invalid '{param}': only the assistant calls tools.", param=param)
    if turn.call_id is not None and turn.role != "tool":
        param = turn.field("tool_call_id")
        raise InvalidParameter(f"Invalid '{param}': only a tool answers a call.", param=param)
    if turn.parts is None and not is_assistant:
        raise MissingParameter(turn.field("content"))
    fields: dict[str, Any] = {
        # OpenAI renamed the role; templates know the old name.
        "role": "system" if turn.role == "developer" else turn.role,
        "content": _template_content(turn),
    }
    if turn.name is not None:
        fields["name"] = turn.name
    if turn.thinking is not None:
        fields["reasoning_content"] = turn.thinking
    return fields


def _template_content(turn: Turn) -> str | list[dict[str, str]]:
    """Return the text of a turn, or its parts if it has an image."""
    if not turn.images:
        return "".join(part.text for part in turn.texts)
    return [{"type": "image"} if isinstance(p, ImagePart) else _text_part(p.text) for p in turn.parts or ()]


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _template_call(call: OpenCall, arguments: str) -> dict[str, Any]:
    try:
        parsed = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        parsed = None
    stated = parsed if isinstance(parsed, dict) else arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": stated}}


def _without_images_of_results(turns: Sequence[Turn]) -> tuple[list[Turn], list[str]]:
    """Return the turns for a text-only model without the images of results, and what was left out."""
    kept, left_out = list[Turn](), list[str]()
    for turn in turns:
        images = turn.images if turn.role == "tool" else ()
        kept.append(replace(turn, parts=tuple(turn.texts)) if images else turn)
        left_out += [image.at for image in images]
    return kept, left_out[:1]


def _with_written_images(turns: Sequence[Turn], template: ChatTemplate, placeholder: str) -> Sequence[Turn]:
    """Return a conversation in which the user shows what results of tools show, next after them, if they cannot."""
    has_some = any(turn.role == "tool" and turn.images for turn in turns)
    if not has_some or template.writes_images_of_results(placeholder):
        return turns
    changed, images = list[Turn](), list[Part]()
    for turn in turns:
        if turn.role == "tool":
            images += turn.images
            changed.append(replace(turn, parts=tuple(turn.texts)) if turn.images else turn)
        elif images and turn.role == "user":
            changed.append(replace(turn, parts=(*images, *(turn.parts or ()))))
            images = []
        else:
            if images:
                changed.append(_shown_by_user(images))
                images = []
            changed.append(turn)
    return [*changed, _shown_by_user(images)] if images else changed


def _shown_by_user(images: Sequence[Part]) -> Turn:
    return Turn(role="user", parts=tuple(images), at=images[0].at)


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


def rendered(conversation: Conversation, model: PromptModel, images: Sequence[str] | None = None) -> RenderedChat:
    """Return the prompt that a conversation's turns and tools make.

    Args:
        conversation: what to render.
        model: the model that answers.
        images: what takes the place of each image; None where images are not read.

    Raises:
        InvalidParameter: the model has no template, the template refuses the turns, or a text stands for an image.
        UnsupportedParameter: the template has no place for tools, or the model none for images.
        TemplateFailed: the template takes too long.
        RequestError: another field stands for an image.
    """
    try:
        return _rendered(conversation, model, images)
    except TemplateFailed as error:
        raise TemplateFailed(error.reason, model.name) from error


def _rendered(conversation: Conversation, model: PromptModel, images: Sequence[str] | None) -> RenderedChat:
    if model.chat_template is None:
        raise InvalidParameter(
            f"The model '{model.name}' has no chat template, so it takes no messages. "
            "Send a 'prompt' to /v1/completions.",
            param=conversation.at,
        )
    template = _chosen(model.chat_template, conversation)
    variables, ignored = template_variables(conversation, template)
    turns, left_out = conversation.turns, list[str]()
    if model.images is None:
        turns, left_out = _without_images_of_results(turns)
    _check_images(turns, model, can_see=images is not None)
    if model.images is not None:
        turns = _with_written_images(turns, template, model.images.placeholder)
    messages = _messages(turns, template)
    shown = [tool.for_template() for tool in conversation.shown_tools]
    render = partial(
        template.render,
        documents=conversation.documents,
        add_generation_prompt=conversation.begins_answer,
        continue_final_message=conversation.continues_last,
        variables=variables,
    )
    try:
        text = render(messages, tools=shown)
    except InvalidParameter:
        complete = list(map(with_content, messages)), list(map(with_parameters, shown))
        if complete == (messages, shown):
            raise
        messages, shown = complete
        text = render(messages, tools=shown)
    unsure = {message["role"] for message in messages} - ROLES
    if any(message["role"] == "tool" for message in messages) and not template.writes_results:
        unsure.add("tool")
    if unsure:
        _check_roles(turns, messages, unsure, partial(render, tools=shown))
    if model.images is not None:
        text = model.images.expanded(text, images or ())
    return RenderedChat(text, [*ignored, *left_out])


def _chosen(template: ChatTemplate, conversation: Conversation) -> ChatTemplate:
    """Return the one of a model's templates that is for the request, if it writes all that the request brings."""
    tools, documents = conversation.shown_tools, conversation.documents
    chosen = template.chosen(has_tools=bool(tools), has_documents=bool(documents))
    if tools and chosen.tool_format is None:
        message = "the model's chat template does not render tools. Describe them in a message."
        raise UnsupportedParameter("tools", message)
    if documents and not chosen.reads_documents:
        message = "the model's chat template does not render documents. Put their texts into a message."
        raise UnsupportedParameter("documents", message)
    return chosen


def _messages(turns: Sequence[Turn], template: ChatTemplate) -> list[dict[str, Any]]:
    """Return the turns as the client sent them, as far as the template can write them so."""
    messages = [as_sent(message, turn, template) for message, turn in zip(template_messages(turns), turns, strict=True)]
    if any(message["role"] == "system" for message in messages[1:]) and not template.takes_late_system:
        messages = _with_late_system_as_user(messages)
    if turns[0].role == "developer" and template.knows_developer:
        messages[0]["role"] = "developer"
    if template.reads_parts_alone:
        messages = [message | {"content": _as_parts(message.get("content", ""))} for message in messages]
    messages = _with_known_arguments(messages, template)
    return one_call_a_message(messages) if template.format.has_headers else messages


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
    turns: Sequence[Turn],
    messages: Sequence[dict[str, Any]],
    unsure: Set[str],
    render: Callable[[list[dict[str, Any]]], str],
) -> None:
    """Check that the template does not drop messages of roles that not every template writes.

    Args:
        turns: the turns of the conversation.
        messages: what the template gets.
        unsure: the roles to check.
        render: returns the prompt.

    Raises:
        InvalidParameter: it drops one.
    """
    marks = {index: secrets.token_hex(16) for index, message in enumerate(messages) if message["role"] in unsure}
    text = render(
        [
            message | ({"content": marked(message.get("content", ""), marks[i])} if i in marks else {})
            for i, message in enumerate(messages)
        ]
    )
    for index, mark in marks.items():
        if mark not in text:
            role = messages[index]["role"]
            param = next(turn.field("role") for turn in turns if turn.role == role)
            message = f"Invalid '{param}': the model's chat template does not write messages of the role '{role}'."
            raise InvalidParameter(message, param=param)


def _check_images(turns: Sequence[Turn], model: PromptModel, *, can_see: bool) -> None:
    """Check that a conversation has images only where they are seen, and that no text stands for one."""
    if model.images is None and not any(turn.images for turn in turns):
        return
    for part in (part for turn in turns for part in turn.parts or ()):
        if isinstance(part, TextPart):
            if model.images is not None:
                model.images.check_text(part.text, part.at)
        elif model.images is None:
            # Defends against T18.
            raise UnsupportedParameter(part.type_at, f"the model '{model.name}' reads only text.")
        elif not can_see:
            raise UnsupportedParameter(part.type_at, "this route reads only text.")
