"""Detection of the format of a chat template: the one that reads back what the template has written.

An invented conversation is rendered by the template in a few variants. Marks in its source say less: families share
marks, and a template may quote another's. They decide where the template writes no calls.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from service.errors import InvalidParameter
from service.text.formats.codecs import Codec, Elements, Literal
from service.text.formats.families import ALL_TAGS, FAMILIES, HARMONY, NO_CALLS, UNKNOWN, by_signs, named, of_reasoning
from service.text.formats.format import Calls, Format, Tags
from service.text.formats.parts import Arguments, CallStart, Part, Thought
from service.text.formats.reader import AnswerReader

logger = logging.getLogger(__name__)

NONE = "none"  # the name of no format
# Of transformers' descriptions of answers. Source: transformers' utils/chat_parsing/response_templates.py
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_CODECS: dict[str, type[Codec]] = {"xml-inline": Elements, "kv-lines": Elements, "python-call-list": Literal}
_USER = {"role": "user", "content": "a question"}
_THINKING, _CONTENT, _RESULT = "a probing thought", "a probing sentence", "a probing result"
_CALLS = {"probe_first": {"text": 'a "b" {c}', "number": 7, "object": {"key": [1, 2]}}, "probe_second": {"text": "d"}}
_TEXT_NAMES = dict.fromkeys(_CALLS, frozenset({"text"}))
_IDS = ("aB3dE6gH9", "bC4eF7hI0")  # which Mistral's templates take

type Render = Callable[[Sequence[Mapping[str, Any]], bool], str]


def detected(
    render: Render,
    source: str,
    *,
    has_tools: bool,
    tool_call_parser: str | None,
    reasoning_parser: str | None,
    response_template: Mapping[str, Any] = MappingProxyType({}),
) -> Format:
    """Return the format of a template, with the tags that its reasoning has.

    Args:
        render: renders messages, with the beginning of an answer or without; raises InvalidParameter if it cannot.
        source: of the template, and of its variants.
        has_tools: whether it writes the tools of a request.
        tool_call_parser: the name that the operator has set for the calls, if any.
        reasoning_parser: the same for reasoning.
        response_template: of tokenizer_config.json, if it has one.
    """
    stated = _fields(response_template)
    shown = list(_shown(render)) if has_tools else []
    forms = (_stated_forms(stated) or FAMILIES) if tool_call_parser is None else named(tool_call_parser)
    if tool_call_parser == NONE or not has_tools:
        form = HARMONY.without_calls if HARMONY is by_signs(source) else NO_CALLS
    else:
        signed = by_signs(source, forms)
        is_other = forms is FAMILIES and any(each.has_calls and each.has_marks_of(signed) for each in shown)
        form = _of_round_trip(shown, forms, source) or (UNKNOWN if is_other else signed)
        if _is_bare(form) and not is_other and signed.calls and not _is_bare(signed):
            form = signed  # whose marks the template teaches, and does not write around earlier calls
    if reasoning_parser not in (None, NONE) and of_reasoning(reasoning_parser).has_headers:
        return form if form.has_headers else HARMONY
    if form.has_headers:
        return replace(form, thinking=())
    stated_tags = _stated_tags(stated) if reasoning_parser is None else ()
    return replace(form, thinking=stated_tags or _tags(form, shown, source, reasoning_parser))


def _tags(form: Format, shown: "Sequence[_Shown]", source: str, reasoning_parser: str | None) -> tuple[Tags, ...]:
    if reasoning_parser is not None:
        return () if reasoning_parser == NONE else of_reasoning(reasoning_parser).thinking
    known = dict.fromkeys((*form.thinking, *ALL_TAGS))
    texts = [source, *(each.text for each in shown)]
    return tuple(tags for tags in known if any(tag.strip() in text for tag in tags for text in texts))


def _fields(response_template: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the regions of an answer that transformers' description states."""
    fields = response_template.get("fields", {})
    if not isinstance(fields, Mapping) or not all(isinstance(field, Mapping) for field in fields.values()):
        logger.warning("tokenizer_config.json: 'response_template.fields' is no object of objects; not used")
        return {}
    return fields


def _stated_tags(fields: Mapping[str, Mapping[str, Any]]) -> tuple[Tags, ...]:
    """Return the tags of reasoning that transformers' description of an answer states as texts."""
    found = (tags for name in _REASONING_FIELDS if name in fields for tags in _literal_tags(name, fields[name]))
    return tuple(found)


def _stated_forms(fields: Mapping[str, Mapping[str, Any]]) -> list[Format]:
    """Return the formats whose calls begin as the description states; an own one where they are JSON of no family."""
    if "tool_calls" not in fields:
        return []
    kind = _CODECS.get(str(fields["tool_calls"].get("content")), Codec)
    tags = _literal_tags("tool_calls", fields["tool_calls"])
    openings = {each.open.strip().removesuffix("[") for each in tags}
    found = [
        form
        for form in FAMILIES
        if form.calls and openings & set(form.calls[0].openings) and type(form.calls[0].codec) is kind
    ]
    is_own = tags and not found and kind is Codec and tags[0].close
    return [Format("json", (Calls(each=tags[0]),))] if is_own else found


def _literal_tags(name: str, field: Mapping[str, Any]) -> list[Tags]:
    stated = (field.get(key) for key in ("open", "close"))
    found = (each if isinstance(each, list) else [each] for each in stated)
    opened, closed = ([text for text in texts if isinstance(text, str) and text] for texts in found)
    if not opened:
        logger.warning("tokenizer_config.json: 'response_template.fields.%s' has no text as 'open'; not used", name)
    return [Tags(text, closed[0] if closed else "") for text in opened]


class _Shown:
    """An answer as a template writes it, and what it consists of."""

    def __init__(self, text: str, begin: str, num_calls: int, has_refused: bool) -> None:
        self.text, self.begin = text, begin  # behind the beginning of an answer, and that
        self.num_calls, self.has_refused = num_calls, has_refused  # whether it refused more calls

    @property
    def has_calls(self) -> bool:
        return next(iter(_CALLS)) in self.text

    def has_marks_of(self, form: Format) -> bool:
        """Return whether the calls are written between a format's marks, of which it then reads another form."""
        return any(mark in self.text for calls in form.calls for mark in calls.openings)

    def is_read_by(self, form: Format) -> bool | None:
        """Return whether a format reads the calls back; None if it reads only the first of several."""
        begins = Thought if any(self.begin.rstrip().endswith(tags.open.strip()) for tags in form.thinking) else None
        reader = AnswerReader(replace(form, calls=form.calls[:1]), text_names=_TEXT_NAMES, begins=begins)
        calls = _calls([*reader.push(self.text), *reader.flush()])
        expected = list(_CALLS.items())[: self.num_calls]
        if calls == expected:
            return True
        return None if calls == expected[:1] and expected[-1][0] not in self.text else False


def _shown(render: Render) -> Iterator[_Shown]:
    """Yield how a template writes answers with calls: the fullest that it accepts, and without a text."""
    try:
        before, begun = render([_USER], False), render([_USER], True)
    except InvalidParameter:
        return
    has_refused = False
    for num_calls in (2, 1):
        for content in (_CONTENT, ""):
            for has_results in (False, True):
                messages = [_USER, _answer(content, num_calls), *(_results(num_calls) if has_results else ())]
                try:
                    text = render(messages, False)
                except InvalidParameter:
                    continue
                text = text[_common(before, text) :]
                begin = begun[len(before) :] if begun.startswith(before) else ""
                size = _common(begin, text)
                yield _Shown(text[size:], begin[:size], num_calls, has_refused)
                break
        has_refused = True


def _answer(content: str, num_calls: int) -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, (name, arguments) in zip(_IDS, list(_CALLS.items())[:num_calls], strict=False)
    ]
    thinking = {} if content else {"reasoning_content": _THINKING, "thinking": _THINKING}
    return {"role": "assistant", "content": content, **thinking, "tool_calls": calls}


def _results(num_calls: int) -> list[dict[str, Any]]:
    names = list(_CALLS)[:num_calls]
    return [
        {"role": "tool", "content": _RESULT, "tool_call_id": call_id, "name": name}
        for call_id, name in zip(_IDS, names, strict=False)
    ]


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _calls(parts: Sequence[Part]) -> list[tuple[str, Any]]:
    names = [part.name for part in parts if isinstance(part, CallStart)]
    found: list[tuple[str, Any]] = []
    for index, name in enumerate(names):
        text = "".join(part.text for part in parts if isinstance(part, Arguments) and part.index == index)
        try:
            found.append((name, json.loads(text)))
        except ValueError:
            found.append((name, None))
    return found


def _is_bare(form: Format) -> bool:
    return bool(form.calls) and form.calls[0].is_bare and not form.calls[0].optional


def _of_round_trip(shown: Sequence[_Shown], forms: Sequence[Format], source: str) -> Format | None:
    """Return the format that reads what the template has written; None if it writes no calls, or none reads them."""
    for each in shown:
        if not each.has_calls:
            continue
        fitting = [(form, fits) for form in forms if form.calls and (fits := each.is_read_by(form)) is not False]
        if not fitting:
            continue
        signed = by_signs(source, [form for form, _ in fitting])
        fits = next(fits for form, fits in fitting if form is signed)
        allows_several = each.num_calls > 1 and fits is True and signed.allows_several
        return replace(signed, allows_several=allows_several)
    return None
