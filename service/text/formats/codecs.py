"""The arguments of one call, as the JSON that clients get, read from a text that arrives in pieces."""

import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol, override

from service.text.formats.lexer import SENTINEL, Lexer, Literals, Pattern

_SURROGATES = "\ud800-\udfff"
_STRUCTURE = re.compile(rf"[\"{{}}\[\]{_SURROGATES}]")
_STRING = re.compile(r"[\"\\]")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_OPENING_CHARS = 1024  # of an element, its name included
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}


class ArgumentReader(Protocol):
    """Reads the arguments of one call."""

    held: str  # what was pushed and is not read
    is_over: bool  # whether what was held back, at the end, has ended the arguments

    def push(self, text: str) -> tuple[str, str | None]:
        """Append text; return the JSON that it adds, and the text behind the arguments, None if they go on."""
        ...

    def flush(self) -> str:
        """Return the JSON that was held back, at the end of an answer that was cut."""
        ...


class JsonEnd:
    """Finds where one JSON object ends, in time linear in its text; a mark outside of its strings ends it too."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self._in_string = False
        self._is_escaped = False

    def find(self, text: str) -> int | None:
        """Continue with the next piece of text; return the position after the object's end, None if it goes on."""
        position = 0
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = (_STRING if self._in_string else _STRUCTURE).search(text, position)
            if found is None:
                return None
            position = found.end()
            if found[0] == '"':
                self._in_string = not self._in_string
            elif found[0] == "\\":
                self._is_escaped = True
            elif found[0] in "{}[]":
                self.depth += 1 if found[0] in "{[" else -1
                if self.depth <= 0:
                    return position
            else:
                return found.start()
        return None


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to write arguments; this one is JSON."""

    @property
    def is_json(self) -> bool:
        """Whether arguments are JSON."""
        return type(self) is Codec

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may have tokens of their own."""
        return ()

    def written(self, arguments: Mapping[str, Any]) -> str:
        """Return the arguments of a call as the model writes them."""
        return json.dumps(arguments, ensure_ascii=False)

    def reader(self, lexer: Lexer, text_names: Set[str], ends: tuple[str, str]) -> ArgumentReader:
        """Return a reader of one call's arguments.

        Args:
            lexer: turns marks that are tokens back into text, where they are part of a value.
            text_names: the parameters whose values are texts as they are.
            ends: what follows the arguments, and what closes the call.
        """
        del text_names, ends
        return _JsonArguments(lexer)


JSON = Codec()


class _JsonArguments:
    held, is_over = "", False

    def __init__(self, lexer: Lexer) -> None:
        self._end, self._lexer = JsonEnd(), lexer

    def push(self, text: str) -> tuple[str, str | None]:
        end = self._end.find(text)
        return self._lexer.shown(text[:end]), None if end is None else text[end:]

    def flush(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Elements(Codec):
    """Arguments as elements: `open`, the name, `named`, the value, `close`."""

    open: str = "<parameter="
    named: str = ">"
    close: str = "</parameter>"
    has_lines: bool = False  # whether a value has lines of its own
    says_text: bool = False  # whether an attribute behind the name says whether the value is a text

    @property
    @override
    def marks(self) -> tuple[str, ...]:
        return self.open, self.named, self.close

    @override
    def written(self, arguments: Mapping[str, Any]) -> str:
        line, found = "\n" if self.has_lines else "", list[str]()
        for name, value in arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            says = f'" string="{json.dumps(isinstance(value, str))}' if self.says_text else ""
            found.append(f"{self.open}{name}{says}{self.named}{line}{text}{line}{self.close}")
        return "\n".join(found)

    @override
    def reader(self, lexer: Lexer, text_names: Set[str], ends: tuple[str, str]) -> ArgumentReader:
        return _ElementArguments(self, lexer, text_names, ends)


class _ElementArguments:
    """Streams texts, lists and objects; other values wait for their end, which decides what they are.

    An element that is not closed ends where the call does, at the end of the answer.
    """

    def __init__(self, form: Elements, lexer: Lexer, text_names: Set[str], ends: tuple[str, str]) -> None:
        self._form, self._text_names, self._lexer = form, text_names, lexer
        before, named = (
            r"\s*".join(map(re.escape, lexer.literal(text.strip()).split("\n"))) for text in (form.open, form.named)
        )
        says = '(?:" string="(true|false))?' if form.says_text else "()"
        self._open = re.compile(rf"\s*{before}([^\n{_SURROGATES}]+?){says}\s*{named}(\n?)")
        self._begins = Literals([lexer.literal(form.open.strip())])
        self._closes = [Literals([line + lexer.literal(form.close)]) for line in ("", "\n")]
        end, closing = (lexer.literal(text.strip()) for text in ends)
        self._unclosed = Pattern(f"\n{end}\n{closing}\n", "")
        self._first_of_end = Literals([end or closing])
        self.held, self.is_over = "", False
        self._num_elements = 0
        self._is_open = self._is_line = self._is_text = self._is_lump = False

    def push(self, text: str) -> tuple[str, str | None]:
        self.held += text
        found: list[str] = []
        before = None
        while before != (before := (len(self.held), self._is_open)):
            if self._is_open:
                found.append(self._value())
            elif element := self._open.match(self.held, 0, _MAX_OPENING_CHARS):
                if self._form.has_lines and element.end() == len(self.held) and not element[3]:
                    break
                self.held = self.held[element.end() if self._form.has_lines else element.start(3) :]
                found.append(self._begin(element))
            elif (rest := self.held.lstrip()) and not self._may_begin(rest):
                found.append(self._end())
                rest, self.held = self.held, ""
                return "".join(found), rest
        return "".join(found), None

    def flush(self) -> str:
        if not self._is_open:
            return ""
        start = self._unclosed_at()
        if start < len(self.held) and self._unclosed.match(self.held[start:]):
            self.is_over = True
            return self._piece(self.held[:start], is_last=True) + self._end()
        return self._piece(self.held, is_last=False) if not self._is_lump else self.held.strip()

    def _may_begin(self, text: str) -> bool:
        """Return whether what precedes a value may go on from here."""
        is_begun = self._begins.match(text) is not None or self._begins.may_go_on(text)
        return is_begun and len(self.held) < _MAX_OPENING_CHARS

    def _begin(self, element: re.Match[str]) -> str:
        name, says = element[1], element[2]
        self._is_text = says == "true" if says else name in self._text_names
        self._is_open, self._is_line, self._is_lump = True, bool(element[3]) and self._form.has_lines, not self._is_text
        self._num_elements += 1
        separator, quote = "{" if self._num_elements == 1 else ", ", '"' if self._is_text else ""
        return f"{separator}{json.dumps(self._lexer.shown(name), ensure_ascii=False)}: {quote}"

    def _end(self) -> str:
        return "}" if self._num_elements else "{}"

    def _value(self) -> str:
        """Read what is there of a value."""
        close = self._closes[self._is_line]
        if self._is_lump and self.held.lstrip()[:1] in ("{", "["):
            self._is_lump = False
        if found := close.search(self.held):
            value, self.held = self.held[: found.start()], self.held[found.end() :]
            self._is_open = False
            return self._piece(value, is_last=True)
        if self._is_lump:
            return ""
        stop = min(self._unclosed_at(), len(self.held) - close.held(self.held))
        value, self.held = self.held[:stop], self.held[stop:]
        return self._piece(value, is_last=False)

    def _unclosed_at(self) -> int:
        """Return where what may be the end of the call begins, the end of the text if it does not."""
        text = self.held
        found = self._first_of_end.search(text)
        while found is not None:
            start = len(text[: found.start()].rstrip())
            if self._unclosed.may_go_on(text[start:]):
                return start
            found = self._first_of_end.search(text, found.end())
        return len(text[: len(text) - self._first_of_end.held(text)].rstrip())

    def _piece(self, text: str, *, is_last: bool) -> str:
        text = self._lexer.shown(text)
        if self._is_text:
            return json.dumps(text, ensure_ascii=False)[1:-1] + '"' * is_last
        return as_json(text.strip()) if self._is_lump else text


def as_json(text: str) -> str:
    """Return a bare value as JSON: a number or a constant, else a text."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _NUMBER.fullmatch(text):
        return text
    if text[:1] == '"':
        try:
            return text if isinstance(json.loads(text), str) else json.dumps(text, ensure_ascii=False)
        except ValueError:
            pass
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Literal(Codec):
    """Arguments as literals, Python's or Gemma's: `key=value` or `key:value`, up to the closing bracket."""

    assign: str = "="
    quote: str = ""  # around texts, which have no escapes; without one, Python's

    @property
    @override
    def marks(self) -> tuple[str, ...]:
        return (self.quote,) if self.quote else ()

    @override
    def written(self, arguments: Mapping[str, Any]) -> str:
        between = "," if self.quote else ", "
        items = (f"{name}{self.assign}{self._value(value)}" for name, value in arguments.items())
        return f"{between.join(items)}{'}' if self.quote else ')'}"

    def _value(self, value: Any) -> str:
        if not self.quote:
            return repr(value)
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, Mapping):
            return f"{{{','.join(f'{name}:{self._value(each)}' for name, each in value.items())}}}"
        return f"[{','.join(map(self._value, value))}]" if isinstance(value, list) else json.dumps(value)

    @override
    def reader(self, lexer: Lexer, text_names: Set[str], ends: tuple[str, str]) -> ArgumentReader:
        del text_names, ends
        return _LiteralArguments(self, lexer)


class _LiteralArguments:
    """Streams texts and structure; bare words wait for their end."""

    def __init__(self, form: Literal, lexer: Lexer) -> None:
        self._lexer, self._quote = lexer, lexer.literal(form.quote)
        quotes = re.escape(self._quote) if self._quote else "[\"']"
        self._token = re.compile(
            rf"(?P<quote>{quotes})|(?P<open>[\[{{(])|(?P<close>[\]}})])|(?P<comma>,)|(?P<mark>[{_SURROGATES}])"
            rf"|(?P<key>[^\s,()\[\]{{}}:=\"'<{_SURROGATES}]+)\s*{form.assign}|(?P<colon>:)"
            rf"|(?P<word>[^\s,()\[\]{{}}:{_SURROGATES}]+)(?P<call>\()?"
        )
        self.held, self.is_over = "", False
        self._stack = ["}"]  # what closes each bracket, in JSON
        self._counts = [0]  # of the items of each bracket so far
        self._string = ""  # what closes the text that has begun
        self._is_value = False  # whether a key has been read
        self._is_begun = False

    def push(self, text: str) -> tuple[str, str | None]:
        self.held += text
        found = ["" if self._is_begun else "{"]
        self._is_begun = True
        size = -1
        while self._stack and size != len(self.held):
            size = len(self.held)
            found.append(self._read_string() if self._string else self._read_token())
        if self._stack:
            return "".join(found), None
        rest, self.held = self.held, ""
        return "".join(found), rest

    def flush(self) -> str:
        if self._string:
            return '"' if self.held == self._string else ""
        return self._item() + self.held if _NUMBER.fullmatch(self.held) else ""

    def _item(self, *, is_key: bool = False) -> str:
        """Return what precedes an item; an argument without a name has its number."""
        if self._is_value:
            self._is_value = False
            return ""
        self._counts[-1] += 1
        separator = ", " if self._counts[-1] > 1 else ""
        has_name = is_key or self._quote or len(self._stack) > 1
        return separator if has_name else f'{separator}"{self._counts[-1] - 1}": '

    def _read_token(self) -> str:
        self.held = self.held.lstrip()
        token = self._token.match(self.held)
        if token is None:  # a stray character, or the beginning of a quote
            self.held = self.held if self._quote.startswith(self.held) else self.held[1:]
            return ""
        kind, text, found = token.lastgroup, token[0], ""
        if kind == "key" and (self._is_value or self._stack[-1] == "]"):  # such as a time
            kind, text = "word", re.split(r"[\s,()\[\]{}]", self.held, maxsplit=1)[0]
        if kind in ("word", "key") and len(text) == len(self.held):  # which may go on
            return ""
        if kind == "call":
            return self._read_call()
        if kind != "mark":
            self.held = self.held[len(text) :]
        match kind:
            case "quote":
                self._string = text
                found = self._item() + '"'
            case "open":
                found = self._item() + ("{" if text == "{" else "[")
                self._stack.append("}" if text == "{" else "]")
                self._counts.append(0)
            case "close":
                self._counts.pop()
                found = self._stack.pop()
            case "key":
                found = f"{self._item(is_key=True)}{json.dumps(token['key'], ensure_ascii=False)}: "
                self._is_value = True
            case "colon":
                found, self._is_value = ": ", True
            case "word":
                found = self._item() + as_json(text)
            case "mark":
                self._stack.clear()
        return found

    def _read_call(self) -> str:
        """Read a call that is a value, as a text."""
        depth = 0
        for position, character in enumerate(self.held):
            depth += (character == "(") - (character == ")")
            if character == ")" and depth == 0:
                text, self.held = self.held[: position + 1], self.held[position + 1 :]
                return self._item() + json.dumps(self._lexer.shown(text), ensure_ascii=False)
        return ""

    def _read_string(self) -> str:
        found: list[str] = []
        position = 0
        while self._string:
            stop = self._next_in_string(position)
            found.append(json.dumps(self._lexer.shown(self.held[position:stop]), ensure_ascii=False)[1:-1])
            position = stop
            if self.held.startswith(self._string, stop):
                behind = self.held[stop + len(self._string) :].lstrip()
                if not self._quote and not behind:
                    break
                if self._quote or behind[0] in ",)]}:" or SENTINEL.match(behind):
                    found.append('"')
                    self._string = ""
                else:  # a quote within the text
                    found.append(json.dumps(self.held[stop])[1:-1])
                position = stop + (len(self._quote) or 1)
            elif escape := _ESCAPE.match(self.held, stop) if not self._quote else None:
                found.append(_unescaped(escape[0]))
                position = escape.end()
            else:
                break
        self.held = self.held[position:]
        return "".join(found)

    def _next_in_string(self, position: int) -> int:
        """Return where the next quote or escape begins, or what may be the beginning of one."""
        if self._quote:
            found = self.held.find(self._quote, position)
            held = Literals([self._quote]).held(self.held[position:])
            return found if found >= 0 else len(self.held) - held
        places = [place for mark in (self._string, "\\") if (place := self.held.find(mark, position)) >= 0]
        return min(places, default=len(self.held))


_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^xuU])", re.DOTALL)


def _unescaped(escape: str) -> str:
    """Return one of Python's escapes as JSON writes it."""
    letter = escape[1]
    if letter in 'nrtbf\\"':
        return escape
    if letter in "xuU":
        return json.dumps(chr(min(int(escape[2:], 16), 0x10FFFF)))[1:-1]
    return {"'": "'", "\n": ""}.get(letter) or json.dumps(escape, ensure_ascii=False)[1:-1] * (letter != "\n")
