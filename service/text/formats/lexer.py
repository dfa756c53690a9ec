"""Tokens and text as one string, in which each mark that is one token is one character that no text has."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

_FIRST, _SENTINELS = 0xD800, "\ud800-\udfff"  # surrogates, which no decoded text has
SENTINEL = re.compile(f"[{_SENTINELS}]")
_UNITS = re.compile(r"\$name|\$n|\$id|\s+|.", re.DOTALL)


class Lexer:
    """Knows which marks are one token, so that the same characters in several tokens are text."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """Take marks with the ids of their tokens; every other mark is text."""
        self._marks = {chr(_FIRST + index): mark for index, mark in enumerate(ids)}
        self._characters = {mark: character for character, mark in self._marks.items()}
        self._by_id = {token_id: self._characters[mark] for mark, token_id in ids.items()}
        found = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
        self._known = re.compile(found) if found else None

    def lexed(self, text: str, token_id: int | None) -> str:
        """Return the text of a token, which the characters of the token before may precede."""
        character = self._by_id.get(token_id) if token_id is not None else None
        return text if character is None else text.removesuffix(self._marks[character]) + character

    def literal(self, text: str) -> str:
        """Return a text of a format as it arrives."""
        return text if self._known is None else self._known.sub(lambda found: self._characters[found[0]], text)

    def shown(self, text: str) -> str:
        """Return what arrived as a client may see it."""
        return SENTINEL.sub(lambda found: self._marks.get(found[0], ""), text) if SENTINEL.search(text) else text


class Pattern:
    """A text with places for names, in which white space may be left out, matched as it arrives."""

    def __init__(self, text: str, name: str) -> None:
        """Compile a text with `$name`, `$n` and `$id`; `name` is the pattern of names."""
        places = {"$name": f"(?P<name>{name})", "$n": r"(?P<n>[0-9]+)\s*", "$id": "(?P<id>[a-zA-Z0-9]+)"}
        units = [r"\s*" if unit.isspace() else places.get(unit) or re.escape(unit) for unit in _UNITS.findall(text)]
        self._whole = re.compile("".join(units))
        self._begun = re.compile(
            "".join(f"(?:{re.sub('[?]P<[a-z]+>', '?:', unit)}" for unit in units) + ")?" * len(units)
        )

    def match(self, text: str) -> re.Match[str] | None:
        """Return the match at the beginning of a text."""
        return self._whole.match(text)

    def may_go_on(self, text: str) -> bool:
        """Return whether a text is the beginning of a match."""
        return self._begun.fullmatch(text) is not None


class Literals:
    """A few texts, the first of which is looked for as they arrive."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = sorted({text for text in texts if text}, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, self.texts))) if self.texts else None

    @cached_property
    def _prefixes(self) -> frozenset[str]:
        return frozenset(text[:size] for text in self.texts for size in range(1, len(text)))

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.texts), default=1) - 1

    def search(self, text: str, begin: int = 0) -> re.Match[str] | None:
        """Return the first of them in a text."""
        return None if self._any is None else self._any.search(text, begin)

    def match(self, text: str) -> re.Match[str] | None:
        """Return the one at the beginning of a text."""
        return None if self._any is None else self._any.match(text)

    def may_go_on(self, text: str) -> bool:
        """Return whether a text is the beginning of one."""
        return not text or text in self._prefixes

    def held(self, text: str) -> int:
        """Return how many characters at the end of a text may be the beginning of one."""
        sizes: Iterator[int] = iter(range(min(self._longest, len(text)), 0, -1))
        return next((size for size in sizes if text[-size:] in self._prefixes), 0)
