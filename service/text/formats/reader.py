"""An answer's tokens to its parts as they arrive, in time linear in the text: reasoning, content and calls.

Whatever else is tied to an answer's text, such as stop strings and log-probabilities, is tied to these parts, which are
what a client sees, and never to the marks between them. What is marked as a call and is none is content.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache
from types import MappingProxyType

from service.text.formats.codecs import ArgumentReader, JsonEnd
from service.text.formats.format import NAME, Calls, Format
from service.text.formats.lexer import SENTINEL, Lexer, Literals, Pattern
from service.text.formats.parts import Arguments, CallStart, Content, Part, Thought
from service.text.tokenizer import Tokenizer

_MAX_HEADER_CHARS = 256  # beyond it, what looked like a header is text
_RECIPIENT = re.compile(rf"\bto=(?:functions\.)?({NAME})")
_BETWEEN_MESSAGES = "\n"  # of one kind
_NAMES, _ARGUMENTS = ("name", "tool_name", "function"), ("arguments", "parameters")


def mark_ids(form: Format, tokenizer: Tokenizer) -> dict[str, int]:
    """Return the marks of a format that are one token of a vocabulary."""
    found = ((mark, tokenizer.id_of(mark)) for mark in form.marks)
    return {mark: token_id for mark, token_id in found if token_id is not None}


def region_at_end(form: Format, prompt_end: str) -> type[Thought | Content] | None:
    """Return the region of an answer that a prompt ends in; None where the answer has not begun."""
    if form.has_headers:
        header = re.search(r"<\|channel\|>\s*(\w+)[^<]*<\|message\|>$", prompt_end)
        return None if header is None else Thought if header[1] == "analysis" else Content
    if any(prompt_end.endswith(tags.open.strip()) for tags in form.thinking):
        return Thought
    return Content if any(prompt_end.endswith(tags.close) for tags in form.thinking) else None


class _CallForm:
    """One way to write calls, as it arrives."""

    def __init__(self, calls: Calls, lexer: Lexer) -> None:
        self.calls = calls
        self.openings = [lexer.literal(text) for text in calls.openings]
        self.needs_opening = bool(calls.each.open.strip())
        self.last = lexer.literal((calls.each.close or calls.close).strip(" \n]"))
        ends = (calls.end, calls.each.close, calls.close)
        self.closings = [lexer.literal(end) for text in ends if (end := text.strip(" \n]}"))]
        head = calls.head.strip() + (" {" if calls.codec.is_json else "")
        self.head = Pattern(lexer.literal(head), NAME)
        self.is_list = calls.is_bare or calls.open.endswith("[")

    def match(self, text: str) -> tuple[re.Match[str], int] | None:
        """Return the head of a call and its size, once what follows shows that its name is complete."""
        found = self.head.match(text)
        if found is None or (found.end() == len(text) and self.calls.head.rstrip().endswith("$name")):
            return None
        return found, found.end() - self.calls.codec.is_json


class _Rules:
    """A format with the marks of one vocabulary."""

    def __init__(self, form: Format, ids: Mapping[str, int]) -> None:
        self.lexer = Lexer(ids)
        literal = self.lexer.literal
        self.form = form
        self.forms = [_CallForm(calls, self.lexer) for calls in form.calls]
        self.opens = {literal(tags.open.strip()): literal(tags.close) for tags in form.thinking}
        self.closes = set(self.opens.values())
        self.wraps = {literal(tag) for tags in form.wraps for tag in tags}
        self.openings = {mark for form in self.forms for mark in form.openings}
        self.closings = {mark for form in self.forms for mark in form.closings}
        self.last = {form.last for form in self.forms}  # of the marks behind calls
        hidden = [literal(mark) for mark in form.hidden]
        if form.has_headers:
            self.start, self.channel, self.message, self.constrain, *_ = hidden
            self.header_channel = re.compile(rf"{re.escape(self.channel)}\s*(\w+)")
        tags = (*self.opens, *self.closes, *hidden)
        others = [literal(mark) for mark in form.marks] if form.calls or form.has_headers else []
        self.marks = {
            Thought: Literals((*tags, *self.openings, *self.closings, *filter(SENTINEL.match, others))),
            Content: Literals((*tags, *self.wraps, *self.openings, *self.closings, *others)),
        }
        self.of_calls = Literals((*self.openings, *self.closings))


_rules = lru_cache(maxsize=64)(lambda form, ids: _Rules(form, dict(ids)))


class AnswerReader:
    """Reads one answer; the joined parts do not depend on where its text was cut."""

    def __init__(
        self,
        form: Format,
        ids: Mapping[str, int] = MappingProxyType({}),
        *,
        text_names: Mapping[str, Set[str]] = MappingProxyType({}),
        begins: type[Thought | Content] | None = None,
        keeps_space: bool = False,
    ) -> None:
        """Begin an answer.

        Args:
            form: how it is written; without calls if it may have none.
            ids: the marks that are one token.
            text_names: for each function, the parameters whose values are unquoted texts, if the format has elements.
            begins: the region that the prompt ends in; None at the beginning of an answer.
            keeps_space: white space behind reasoning belongs to the content, as where a grammar has chosen it.
        """
        self._rules: _Rules = _rules(form, tuple(ids.items()))
        self._text_names, self._keeps_space = text_names, keeps_space
        self._text = ""  # not read yet
        self._num_chars = 0  # of all that was pushed
        self._region: type[Thought | Content | Arguments] = begins or Content
        self._begun: set[type] = {begins} if begins is Thought or (begins is Content and form.has_headers) else set()
        self._is_at_mark = begins is Thought  # whether white space that follows belongs to a mark
        self._is_continued = False  # whether a message of a kind goes on that had one before
        self._is_opened = False  # whether a call has begun whose name is not known yet
        self._is_closed = True  # whether the calls before have been closed by a mark
        self._object: tuple[JsonEnd, int] = JsonEnd(), 0  # of what may be a call, and how much of it has been read
        self._arguments: ArgumentReader | None = None
        self._num_calls = 0
        self._last_open = ""  # a tag that has opened reasoning behind content, of which nothing has come yet
        self._num_thinking = self._num_undecided = 0
        self._has_closed = self._is_over = False
        self._read: Callable[[], Iterator[Part]] = self._read_text
        if form.has_headers and begins is None:
            self._read = self._read_header

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that belong to no part yet."""
        held = "" if self._arguments is None else self._arguments.held
        return len(self._rules.lexer.shown(held + self._text))

    @property
    def num_thinking(self) -> int:
        """How many of the pieces that were pushed are reasoning, so far, its marks included."""
        return self._num_thinking

    @property
    def is_inside_call(self) -> bool:
        """Whether a call has begun and has not ended."""
        return self._is_opened or self._arguments is not None

    def push(self, text: str, token_id: int | None = None) -> list[Part]:
        """Append the text of a token, or any text, and return the parts that it completes or continues."""
        self._text += self._rules.lexer.lexed(text, token_id)
        self._num_chars += len(text)
        self._num_undecided += 1
        self._has_closed = False
        parts = list(self._parts())
        in_header = self._read == self._read_header and Thought in self._begun and Content not in self._begun
        is_thinking = self._region is Thought and self._read == self._read_text
        if in_header or is_thinking or self._has_closed:
            self._num_thinking += self._num_undecided
            self._num_undecided = 0
        elif not self._text:
            self._num_undecided = 0
        return parts

    def flush(self) -> list[Part]:
        """Return the parts of the text that was held back, at the end; of a call that was cut before its name, none."""
        self._is_over = True
        parts = list(self._parts())
        return [*parts, Content(self._last_open, self._num_chars - len(self._last_open))] if self._last_open else parts

    def _parts(self) -> Iterator[Part]:
        before = None
        while before != (before := (self._read, len(self._text), self._is_opened, self._region)):
            yield from self._read()
            if not (self._text or self._is_over):
                return

    def _take(self, size: int) -> str:
        piece, self._text = self._text[:size], self._text[size:]
        return piece

    def _part(self, size: int) -> Part:
        """Return the next characters as a part of the region."""
        begin = self._num_chars - len(self._rules.lexer.shown(self._text))
        text = (_BETWEEN_MESSAGES if self._is_continued else "") + self._rules.lexer.shown(self._take(size))
        self._is_continued = self._is_at_mark = False
        self._last_open = ""
        self._begun.add(self._region)
        return Thought(text) if self._region is Thought else Content(text, begin)

    # The text of a region.

    def _read_text(self) -> Iterator[Part]:
        rules, is_content = self._rules, self._region is Content
        if self._is_at_mark and not (self._keeps_space and is_content):
            self._text = self._text.lstrip()
        is_first = is_content and Content not in self._begun
        if is_first and self._num_calls == 0 and self._begins_bare_call():
            return
        stop, mark = self._next_mark()
        piece = self._text[:stop]
        is_last = self._is_over and not mark
        if not is_content or (is_first and not piece.strip()) or (rules.wraps and (not mark or mark in rules.wraps)):
            piece = piece if is_last else piece.rstrip()
        if piece and self._region is not Arguments:
            yield self._part(len(piece))
        elif self._region is Arguments:
            self._take(len(piece))
        if mark:
            self._take(stop + len(mark) - len(piece))
            self._follow(mark)

    def _next_mark(self) -> tuple[int, str]:
        """Return where the next mark begins, and the mark; without one, where what may be one begins."""
        marks = self._rules.marks[Thought if self._region is Thought else Content]
        found = marks.search(self._text)
        undecided = len(self._text) - (0 if self._is_over else marks.held(self._text))
        while found is not None:
            start, mark = found.start(), found[0]
            if undecided <= start:  # a longer mark
                break
            if self._region is not Thought or mark not in self._rules.openings or SENTINEL.match(mark):
                return start, mark
            # A reasoning may speak of calls.
            if (begins := self._begins_call(self._text[found.end() :])) is not False:
                return start, mark if begins else ""
            found = marks.search(self._text, found.end())
        return undecided, ""

    def _begins_call(self, text: str) -> bool | None:
        """Return whether the head of a call follows an opening; None if that is not known yet."""
        text = text.lstrip(" \t\r\n[")
        while mark := self._rules.of_calls.match(text):
            text = text[mark.end() :].lstrip(" \t\r\n[")
        if any(form.match(text) for form in self._rules.forms):
            return True
        heads = (self._rules.of_calls, *(form.head for form in self._rules.forms))
        return None if not self._is_over and any(head.may_go_on(text) for head in heads) else False

    def _follow(self, mark: str) -> None:
        """Go where a mark leads."""
        rules = self._rules
        self._is_at_mark = True
        if rules.form.has_headers:
            self._is_at_mark = False
            if mark not in (rules.message, rules.constrain):
                self._text = (mark if mark in (rules.start, rules.channel) else "") + self._text
                self._read = self._read_header
        elif mark in rules.opens:
            self._region = Thought
            # Without tokens for both tags, one that ends a content may be meant as text.
            is_doubtful = Content in self._begun and not SENTINEL.match(rules.opens[mark])
            self._last_open = rules.lexer.shown(mark) if is_doubtful else ""
        elif mark in rules.closes:
            self._has_closed = self._region is Thought
            self._region, self._last_open = Content, ""
        elif mark in rules.openings:
            self._open_calls()

    # Calls.

    def _open_calls(self) -> None:
        self._is_opened, self._is_closed, self._read = True, False, self._read_calls
        self._object = JsonEnd(), 0

    def _begins_bare_call(self) -> bool:
        """Return whether the content begins with a call without an opening, or may do so."""
        text = self._text.lstrip()
        for form in self._rules.forms:
            if not (text and form.calls.is_bare) or (form.calls.open and not text.startswith(form.calls.open)):
                continue
            body = text[len(form.calls.open) :].lstrip()
            if found := form.match(body):
                if not self._text_names or found[0]["name"] in self._text_names:
                    self._text, self._is_closed, self._read = body, False, self._read_calls
                    return True
            elif form.head.may_go_on(body) and not self._is_over:
                return True
            elif form.calls.is_object and body.startswith("{") and not self._is_over:
                end = self._end_of_object(body)
                if end is None or _call_of(body[:end]) is not None:
                    self._is_closed, self._read = False, self._read_calls if end else self._read
                    return True
        return False

    def _end_of_object(self, text: str) -> int | None:
        """Return where an object ends that begins a text, of which the beginning may have been looked at before."""
        reader, num_read = self._object
        end = reader.find(text[num_read:])
        if end is None:
            self._object = reader, len(text)
            return None
        self._object = JsonEnd(), 0
        return num_read + end

    def _read_calls(self) -> Iterator[Part]:
        """Read what is between calls, and the head of the next one."""
        rules = self._rules
        is_list = not self._is_closed and any(form.is_list or form.calls.is_object for form in rules.forms)
        self._text = text = self._text.lstrip()
        forms = [form for form in rules.forms if self._is_opened or not (form.needs_opening or self._is_closed)]
        for form in forms:
            if found := form.match(text):
                self._take(found[1])
                yield self._call(found[0]["name"], found[0].groupdict())
                names = self._text_names.get(found[0]["name"], frozenset())
                ends = form.calls.end, form.calls.each.close or form.calls.close
                self._arguments = form.calls.codec.reader(rules.lexer, names, ends)
                self._read = self._read_arguments
                self._is_object = form.calls.is_object
                return
        is_begun = bool(text) and not self._is_over and any(form.head.may_go_on(text) for form in forms)
        if not is_begun and (mark := rules.of_calls.match(text)):
            self._take(mark.end())
            if mark[0] in rules.openings:
                self._open_calls()
            else:
                self._is_opened = False
                self._is_closed = self._is_closed or mark[0] in rules.last
            return
        if is_list and text[:1] in tuple(",;[]}") and not (rules.of_calls.may_go_on(text) and not self._is_over):
            self._take(1)
            return
        if not text or rules.of_calls.may_go_on(text) or any(form.head.may_go_on(text) for form in forms):
            self._text = "" if self._is_over else text
            return
        if text[0] == "{" and forms:
            end = self._end_of_object(text)
            if end is None:
                self._text = "" if self._is_over else text
                return
            if (call := _call_of(rules.lexer.shown(text[:end]))) is not None:
                self._take(end)
                yield self._call(call[0], {})
                yield Arguments(self._num_calls - 1, call[1])
                return
        self._is_opened, self._is_at_mark, self._read = False, True, self._read_text
        if self._region is Content and not self._num_calls:
            self._begun.add(Content)  # which no call begins any more

    def _call(self, name: str, found: Mapping[str, str | None]) -> CallStart:
        self._num_calls += 1
        self._is_opened = self._is_closed = False
        call_id = found.get("id")
        if (number := found.get("n")) is not None:
            call_id = self._rules.form.id_form.replace("$name", name).replace("$n", number)
        return CallStart(self._num_calls - 1, name, call_id)

    def _read_arguments(self) -> Iterator[Part]:
        assert self._arguments is not None, "a call has begun"
        text, mark = self._text, ""
        if self._rules.form.has_headers:  # whose marks are in no argument
            stop, mark = self._next_mark()
            text = self._text[:stop]
        piece, rest = self._arguments.push(text)
        self._text = self._text[len(text) :] if rest is None else rest + self._text[len(text) :]
        is_over = rest is not None or bool(mark)
        if self._is_over and not is_over:
            piece += self._arguments.flush()
            is_over = self._arguments.is_over
        if is_over:
            self._arguments = None
            self._read = self._read_calls
            if self._rules.form.has_headers:
                self._region, self._read = Arguments, self._read_text
            elif self._is_object:
                self._read = self._read_rest_of_object
        if piece:
            yield Arguments(self._num_calls - 1, piece)

    def _read_rest_of_object(self) -> Iterator[Part]:
        """Skip what an object has behind the arguments."""
        rest = self._text.lstrip()
        if rest[:1] == "," and not rest[1:].lstrip() and not self._is_over:
            return
        if rest[:1] == "," and rest[1:].lstrip()[:1] == '"':
            self._object = JsonEnd(1), 0
            self._read = self._skip_object
        elif rest or self._is_over:
            self._read = self._read_calls
        yield from ()

    def _skip_object(self) -> Iterator[Part]:
        end = self._object[0].find(self._text)
        self._text = "" if end is None else self._text[end:]
        if end is not None:
            self._read = self._read_calls
        yield from ()

    # Headers of messages.

    def _read_header(self) -> Iterator[Part]:
        rules = self._rules
        header, found, rest = self._text.partition(rules.message)
        begun = header.lstrip()
        starts = (rules.start, rules.channel, "to=")
        is_begun = any(start.startswith(begun) or begun.startswith(start) for start in starts)
        most = _MAX_HEADER_CHARS if found else _MAX_HEADER_CHARS + len(rules.message)
        if (begun and not is_begun) or len(header) > most:
            mark = next((mark for mark in (rules.start, rules.channel) if begun.startswith(mark)), "")
            self._text, self._read = self._text.lstrip().removeprefix(mark), self._read_text
            self._begin_message(Content)
        elif found:
            self._text = rest
            recipient, channels = _RECIPIENT.search(header), rules.header_channel.findall(header)
            if recipient is not None and rules.forms:
                self._is_object, self._read = False, self._read_arguments
                self._arguments = rules.forms[0].calls.codec.reader(rules.lexer, frozenset(), ("", ""))
                yield self._call(recipient[1], {})
            else:
                self._read = self._read_text
                self._begin_message(Thought if channels[-1:] == ["analysis"] else Content)
        elif self._is_over:
            self._text = ""

    def _begin_message(self, region: type[Thought | Content]) -> None:
        self._region, self._is_continued = region, region in self._begun
        self._begun.add(region)


def _call_of(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments of a call that is a JSON object with keys in any order; None if it is none."""
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError):
        return None
    while isinstance(stated, dict) and isinstance(stated.get("function"), dict):
        stated = stated["function"]
    if not isinstance(stated, dict):
        return None
    name = next((stated[key] for key in _NAMES if isinstance(stated.get(key), str)), "")
    arguments = next((stated[key] for key in _ARGUMENTS if key in stated), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not re.fullmatch(NAME, name) or not isinstance(arguments or {}, dict):
        return None
    return name, json.dumps(arguments or {}, ensure_ascii=False)
