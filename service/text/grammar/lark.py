"""Regular grammars in Lark's syntax as patterns, so that they hold the text inside of a JSON string.

The grammar library applies a pattern to what a JSON string means, and a grammar to how it is written. A grammar is
regular if no rule leads back to itself, as is that of Codex's patches.

Source: https://lark-parser.readthedocs.io/en/stable/grammar.html,
https://github.com/lark-parser/lark/blob/master/lark/grammars/common.lark
"""

import json
import re
from functools import lru_cache

from service.text.grammar.patterns import MAX_PATTERN_CHARS

_COMMON = {
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "CR": "\\r",
    "DECIMAL": "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)",
    "DIGIT": "[0-9]",
    "ESCAPED_STRING": '"(?:[^"\\\\\\n]|\\\\.)*"',
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "LCASE_LETTER": "[a-z]",
    "LETTER": "[a-zA-Z]",
    "LF": "\\n",
    "NEWLINE": "(?:\\r?\\n)+",
    "NUMBER": "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_INT": "[+-]?[0-9]+",
    "SIGNED_NUMBER": "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "UCASE_LETTER": "[A-Z]",
    "WORD": "[a-zA-Z]+",
    "WS": "[ \\t\\f\\r\\n]+",
    "WS_INLINE": "[ \\t]+",
}
_MAX_DEPTH = 64
_MAX_KEPT = 32
_TOKEN = re.compile(
    r"""(?P<space>[ \t\f\r]+|//[^\n]*)|(?P<line>\n)|(?P<string>"(?:[^"\\\n]|\\.)*"i?)"""
    r"""|(?P<regex>/(?:[^/\\\n]|\\.)+/[imslux]*)|(?P<name>_?[a-zA-Z][a-zA-Z0-9_]*)"""
    r"""|(?P<directive>%[a-z]+)|(?P<number>[0-9]+)|(?P<sign>->|\.\.|[:|()\[\]*+?!~.,])"""
)
_OPENING, _CLOSING = (("sign", "("), ("sign", "[")), (("sign", ")"), ("sign", "]"))
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$/]")


@lru_cache(maxsize=_MAX_KEPT)
def pattern_of(grammar: str) -> str:
    """Return the pattern of the texts that a grammar allows.

    Raises:
        ValueError: it is malformed, not regular, or has a construct that is not supported; the message says which.
    """
    return _LarkReader(grammar).pattern("start")


class _LarkReader:
    """Reads the rules of one grammar, then writes each where it is used."""

    def __init__(self, grammar: str) -> None:
        self._rules: dict[str, list[tuple[str, str]]] = {}
        self._patterns = dict[str, str]()
        self._writing: list[str] = []
        self._depth = 0
        for statement in _statements(_tokens(grammar)):
            self._read(statement)

    def pattern(self, name: str) -> str:
        """Return the pattern of a rule as one unit."""
        if name not in self._patterns:
            if name not in self._rules:
                raise ValueError(f"it has no rule '{name[:64]}'")
            if name in self._writing:
                raise ValueError(f"the rule '{name[:64]}' leads back to itself")
            self._writing.append(name)
            cursor = _Cursor(self._rules[name])
            self._patterns[name] = self._alternatives(cursor)
            if cursor.next() is not None:
                raise ValueError(f"'{cursor.step()[1][:64]}' is not supported there")
            self._writing.pop()
        return self._patterns[name]

    def _read(self, tokens: list[tuple[str, str]]) -> None:
        kind, text = tokens[0]
        if kind == "directive":
            self._import(text, [text for _, text in tokens[1:]])
            return
        if text in ("?", "!") and len(tokens) > 1:  # how the tree is built
            tokens = tokens[1:]
        kind, name = tokens[0]
        colon = next((i for i, token in enumerate(tokens) if token == ("sign", ":")), 0)
        is_rule = kind == "name" and colon in (1, 3) and (colon == 1 or tokens[1] == ("sign", "."))  # or a priority
        if not is_rule or name in self._rules:
            raise ValueError(f"'{name[:64]}' begins no rule, or its second one")
        self._rules[name] = tokens[colon + 1 :]

    def _import(self, directive: str, texts: list[str]) -> None:
        """Read `%import common.NAME`, `%import common.NAME -> OTHER`, or `%import common (NAME, OTHER)`."""
        if directive != "%import" or texts[:1] != ["common"]:
            raise ValueError(f"'{directive}' is not supported, except to import names of 'common'")
        names = [text for text in texts[1:] if text not in (".", ",", "(", ")", "->")]
        if "->" in texts:
            names, aliases = names[:1], names[1:2]
        else:
            aliases = names
        if not names or len(names) != len(aliases):
            raise ValueError("an import has no name")
        for name, alias in zip(names, aliases, strict=True):
            if name not in _COMMON:
                raise ValueError(f"'common.{name[:64]}' is not supported")
            self._patterns[alias] = f"(?:{_COMMON[name]})"

    def _alternatives(self, cursor: "_Cursor") -> str:
        """Return what is up to a closing bracket or the end, as one unit."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
        found = [self._sequence(cursor)]
        while cursor.take("|"):
            found.append(self._sequence(cursor))
        pattern = f"(?:{'|'.join(found)})"
        if len(pattern) > MAX_PATTERN_CHARS:
            raise ValueError(f"its pattern is longer than {MAX_PATTERN_CHARS} characters")
        self._depth -= 1
        return pattern

    def _sequence(self, cursor: "_Cursor") -> str:
        parts: list[str] = []
        while (token := cursor.next()) is not None and token[1] not in ("|", ")", "]", "->"):
            parts.append(self._item(cursor) + _repetition(cursor))
        if cursor.take("->"):  # the name of a branch of the tree, which nobody reads
            cursor.step()
        return "".join(parts)

    def _item(self, cursor: "_Cursor") -> str:
        kind, text = cursor.step()
        if kind == "string":
            return self._string(cursor, text)
        if kind == "regex":
            content, _, flags = text[1:].rpartition("/")
            if flags:
                raise ValueError(f"the flags '{flags}' of a pattern are not supported")
            return f"(?:{content.replace('\\/', '/')})"
        if kind == "name":
            return self.pattern(text)
        if text in ("(", "["):
            inner = self._alternatives(cursor)
            cursor.expect(")" if text == "(" else "]")
            return inner if text == "(" else f"{inner}?"
        raise ValueError(f"'{text[:64]}' is not supported there")

    @staticmethod
    def _string(cursor: "_Cursor", text: str) -> str:
        if text.endswith("i"):
            raise ValueError("strings without regard to case are not supported")
        if not cursor.take(".."):
            return f"(?:{_escaped(_value(text))})"
        first, last = _value(text), _value(cursor.step()[1])
        if len(first) != 1 or len(last) != 1:
            raise ValueError("a range is of two characters")
        return f"[\\u{{{ord(first):x}}}-\\u{{{ord(last):x}}}]"


class _Cursor:
    """A place in the tokens of one rule."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._position = 0

    def next(self) -> tuple[str, str] | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def step(self) -> tuple[str, str]:
        if (token := self.next()) is None:
            raise ValueError("a rule ends too early")
        self._position += 1
        return token

    def take(self, sign: str) -> bool:
        if self.next() != ("sign", sign):
            return False
        self._position += 1
        return True

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise ValueError(f"a '{sign}' is missing")


def _tokens(grammar: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(grammar):
        found = _TOKEN.match(grammar, position)
        if found is None or found.lastgroup is None:
            raise ValueError(f"'{grammar[position : position + 16]}' is not supported")
        if found.lastgroup != "space":
            tokens.append((found.lastgroup, found[0]))
        position = found.end()
    return tokens


def _statements(tokens: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Return rules and directives; a line that begins with `|`, or is inside of brackets, belongs to the one before."""
    statements: list[list[tuple[str, str]]] = []
    depth, ends_line = 0, True
    for token in tokens:
        if token[0] == "line":
            ends_line = ends_line or depth == 0
            continue
        if ends_line and token != ("sign", "|"):
            statements.append([])
        ends_line = False
        if not statements:
            raise ValueError("it begins with no rule")
        statements[-1].append(token)
        depth += (token in _OPENING) - (token in _CLOSING)
    return statements


def _repetition(cursor: _Cursor) -> str:
    for sign in ("*", "+", "?"):
        if cursor.take(sign):
            return sign
    if not cursor.take("~"):
        return ""
    least = cursor.step()[1]
    most = cursor.step()[1] if cursor.take("..") else least
    if not (least.isdecimal() and most.isdecimal()):
        raise ValueError("a repetition has numbers")
    return f"{{{least},{most}}}"


def _value(text: str) -> str:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"the string {text[:64]} is not supported") from None


def _escaped(text: str) -> str:
    """Return a pattern that matches only a text."""
    controls = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(controls.get(c, f"\\{c}" if _SPECIAL.match(c) else c) for c in text)
