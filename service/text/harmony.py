"""Harmony, in which gpt-oss answers: messages, each with a channel, and with a recipient if it is a call.

<|channel|>analysis<|message|>thinking<|end|>
<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
<|start|>assistant<|channel|>final<|message|>content<|return|>

The prompt ends with the `<|start|>assistant` of the first message. The recipient may come before the channel.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from service.text.answer_reader import Part
from service.text.thinking import Thought
from service.text.tokenizer import Tokenizer
from service.text.tools.format import NAME
from service.text.tools.grammar import CallRules, literal, special_markers
from service.text.tools.harmony import CHANNEL, CONSTRAIN, END, FORMAT, MARKS, MESSAGE, START
from service.text.tools.json_end import JsonEnd
from service.text.tools.parts import Arguments, CallStart, Content

_STRAY = (MESSAGE, CONSTRAIN)  # marks that say nothing within a message
_HEADER_STARTS = (START, CHANNEL, "to=")
_MAX_HEADER_CHARS = 256  # beyond it, what looked like a header is text
_RECIPIENT = re.compile(rf"\bto=(?:functions\.)?({NAME})")
_CHANNEL = re.compile(rf"{re.escape(CHANNEL)}\s*(\w+)")
_MARK = re.compile("|".join(map(re.escape, MARKS)))
_MESSAGES_BETWEEN = "\n"  # between two messages of one kind


class HarmonyReader:
    """Reads one answer; the joined parts do not depend on where its text was cut, and no text is lost but headers."""

    def __init__(self, *, has_calls: bool, is_begun: bool = False) -> None:
        """Begin an answer.

        Args:
            has_calls: whether it may call tools; otherwise a message with a recipient is content.
            is_begun: whether the prompt ends within the content.
        """
        self._has_calls = has_calls
        self._text = ""  # not read yet
        self._is_header = not is_begun
        self._channel: type[Thought | Content | Arguments] = Content
        self._num_calls = 0
        self._arguments: JsonEnd | None = None  # of the call that has begun, until they are complete
        self._begun = {Thought: False, Content: is_begun}
        self._has_message = False  # whether a message of a kind goes on that had one before
        self._num_pushed = 0
        self._num_thinking = 0

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that belong to no part yet."""
        return len(self._text)

    @property
    def num_thinking(self) -> int:
        """How many of the pieces that were pushed are thinking, so far, its marks included."""
        return self._num_thinking

    @property
    def is_inside_call(self) -> bool:
        """Whether a call has begun and has not ended."""
        return self._arguments is not None

    def push(self, text: str) -> list[Part]:
        """Append text and return the parts that it completes or continues."""
        self._text += text
        self._num_pushed += 1
        parts = list(self._parts(is_over=False))
        if self._begun[Thought] and (self._channel is Thought or self._is_header):
            self._num_thinking = self._num_pushed
        return parts

    def flush(self) -> list[Part]:
        """Return the parts of the text that was held back, at the end; a header that was cut shows nothing."""
        return list(self._parts(is_over=True))

    def _parts(self, *, is_over: bool) -> Iterator[Part]:
        while self._text:
            before = len(self._text), self._is_header
            yield from self._read_header(is_over=is_over) if self._is_header else self._read_body(is_over=is_over)
            if before == (len(self._text), self._is_header):
                return

    def _read_header(self, *, is_over: bool) -> Iterator[Part]:
        header, found, rest = self._text.partition(MESSAGE)
        begun = header.lstrip()
        is_begun = any(mark.startswith(begun) or begun.startswith(mark) for mark in _HEADER_STARTS)
        most = _MAX_HEADER_CHARS if found else _MAX_HEADER_CHARS + len(MESSAGE)
        if (begun and not is_begun) or len(header) > most:
            mark = next((mark for mark in (START, CHANNEL) if begun.startswith(mark)), "")
            self._text, self._is_header = self._text.lstrip().removeprefix(mark), False
            self._begin(Content)
        elif found:
            self._text, self._is_header = rest, False
            yield from self._opened(header)
        elif is_over:
            self._text = ""

    def _opened(self, header: str) -> Iterator[Part]:
        """Begin the message of a header."""
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is not None and self._has_calls:
            self._channel, self._arguments = Arguments, JsonEnd()
            self._num_calls += 1
            yield CallStart(self._num_calls - 1, recipient[1])
        else:
            self._begin(Thought if channel is not None and channel[1] == "analysis" else Content)

    def _begin(self, kind: type[Thought | Content]) -> None:
        self._channel, self._has_message = kind, self._begun[kind]
        self._begun[kind] = True

    def _read_body(self, *, is_over: bool) -> Iterator[Part]:
        found = _MARK.search(self._text)
        if found is None:
            held = 0 if is_over else _held(self._text)
            piece, self._text = self._text[: len(self._text) - held], self._text[len(self._text) - held :]
        else:
            mark, piece = found[0], self._text[: found.start()]
            self._is_header = mark not in _STRAY
            self._text = self._text[found.start() if mark in (START, CHANNEL) else found.end() :]
        if self._channel is Arguments:
            yield from self._read_arguments(piece)
        elif piece:
            yield self._part(piece)

    def _read_arguments(self, piece: str) -> Iterator[Part]:
        if self._arguments is not None:
            end = self._arguments.find(piece)
            self._arguments = self._arguments if end is None else None
            if text := piece[:end]:
                yield Arguments(self._num_calls - 1, text)

    def _part(self, text: str) -> Part:
        between = _MESSAGES_BETWEEN if self._has_message else ""
        self._has_message = False
        return Thought(between + text) if self._channel is Thought else Content(between + text)


def _held(text: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    size = max(map(len, MARKS)) - 1
    tail = text[-size:]
    return next((n for n in range(len(tail), 0, -1) if any(mark.startswith(tail[-n:]) for mark in MARKS)), 0)


def grammar(rules: CallRules, tokenizer: Tokenizer) -> list[Mapping[str, Any]]:
    """Return the grammar of an answer that may or must call tools, as parts for the compiler.

    Any number of analyses and preambles come first; a call names one of the tools and its arguments satisfy its schema.
    """
    written = partial(literal, markers=special_markers(FORMAT, tokenizer))
    json_type = f'( " "? {written(CONSTRAIN)} "json" | " json" | " code" )?'
    next_message = written(f"{END}{START}assistant")
    calls = " | ".join(f"call_{index}" for index in range(len(rules.tools)))
    ends = calls if rules.is_required else f"final | {calls}"
    lines = [
        "%llguidance {}",
        f"start: before* ( {ends} )",
        f"before: {written(CHANNEL)} BESIDE {written(MESSAGE)} TEXT {next_message}",
        'BESIDE: "analysis" | "commentary"',
        "TEXT: /(?s:.*)/",
    ]
    if not rules.is_required:
        body = "TEXT" if rules.answer is None else "@answer"
        lines.append(f"final: {written(CHANNEL)} FINAL {json_type} {written(MESSAGE)} {body}")
        lines.append('FINAL: "final"')
    for index, tool in enumerate(rules.tools):
        to = json.dumps(f"to=functions.{tool.name}")
        heads = f'{written(CHANNEL)} BESIDE " " {to} | " " {to} {written(CHANNEL)} BESIDE'
        lines.append(f"call_{index}: ( {heads} ) {json_type} {written(MESSAGE)} %json {json.dumps(tool.schema)}")
    parts: list[Mapping[str, Any]] = [{"name": "calls", "lark_grammar": "\n".join(lines)}]
    has_answer = rules.answer is not None and not rules.is_required
    return [*parts, {"name": "answer", **(rules.answer or {})}] if has_answer else parts


def one_call_a_message(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a chat in which each message has one call, which its result follows, and no content beside thinking.

    The template writes the first call of a message alone, and refuses a content beside calls and thinking: the content
    goes on with the thinking, as the template writes a content without one.
    """
    turns = [dict(turn) for turn in turns]
    found: list[dict[str, Any]] = []
    taken: set[int] = set()
    for place, turn in enumerate(turns):
        if place in taken:
            continue
        calls = turn.get("tool_calls") or []
        content, thinking = turn.get("content"), turn.get("thinking")
        if calls and isinstance(content, str) and content and thinking:
            turn |= {"thinking": f"{thinking}{_MESSAGES_BETWEEN}{content}", "content": ""}
        if len(calls) < 2:
            found.append(turn)
            continue
        results = {}
        for later in range(place + 1, len(turns)):
            if turns[later].get("role") != "tool":
                break
            results.setdefault(turns[later].get("tool_call_id"), later)
        first = turn
        for call in calls:
            found.append(first | {"tool_calls": [call]})
            first = {"role": turn["role"], "content": ""}
            if (result := results.get(call.get("id"))) is not None:
                taken.add(result)
                found.append(turns[result])
    return found
