"""A family's way to write: its regions, their marks, its calls, and the codec of their arguments."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from service.text.formats.codecs import JSON, Codec

# Of functions; MCP's clients join the names of a server and its tool with dots, slashes or colons.
NAME = r"[a-zA-Z0-9_.:/-]{1,128}"
# What a vocabulary may have as one token.
_MARK = re.compile(r"<[^<>\s=]+>|\[/?[A-Z_]+\]|｜DSML｜")


class Tags(NamedTuple):
    """The marks around a region."""

    open: str
    close: str

    @property
    def marks(self) -> tuple[str, str]:
        """What a vocabulary may have as tokens: of a long opening, the beginning."""
        found = _MARK.match(self.open)
        return (found[0] if found else self.open), self.close


THINK, NO_TAGS = Tags("<think>", "</think>"), Tags("", "")


@dataclass(frozen=True, slots=True)
class Calls:
    """How calls are written: `open`, and for each `each.open`, its head, its arguments, `end`, `each.close`, `close`.

    White space in these texts may be left out. Calls without an opening begin an answer.
    """

    head: str = '{"name": "$name", "arguments": '  # up to the arguments, with a name, perhaps an id or a number `$n`
    codec: Codec = JSON
    end: str = "}"  # behind the arguments
    each: Tags = NO_TAGS
    open: str = ""
    close: str = ""
    between: str = ""
    optional: str = ""  # a mark that may come before calls that have no opening

    @property
    def openings(self) -> tuple[str, ...]:
        """The marks that may begin calls."""
        stated = (self.open, self.each.open, self.optional)
        return tuple(mark for text in stated if (mark := text.strip().removesuffix("[")))

    @property
    def is_bare(self) -> bool:
        """Whether calls may begin an answer without an opening."""
        return not (self.open.strip("[") or self.each.open)

    @property
    def is_object(self) -> bool:
        """Whether each call is a JSON object."""
        return self.head.startswith("{") and self.end == "}"

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any] | str]]) -> str:
        """Return calls, names with arguments, as the model writes them; arguments that are a text stay as they are."""
        bodies = list[str]()
        for number, (name, arguments) in enumerate(calls):
            head = self.head.replace("$name", name).replace("$n", str(number)).replace("$id", f"call{number + 1:05}")
            text = arguments if isinstance(arguments, str) else self.codec.written(arguments)
            bodies.append(f"{self.each.open}{head}{text}{self.end}{self.each.close}")
        return f"{self.open}{self.between.join(bodies)}{self.close}"


@dataclass(frozen=True)
class Format:
    """How a family writes its answers. The names are vLLM's, where it has them."""

    name: str  # of its calls
    calls: tuple[Calls, ...] = ()  # the first is what a grammar holds calls to; the others are read too
    thinking: tuple[Tags, ...] = (THINK,)
    wraps: tuple[Tags, ...] = ()  # around the content, which does not have them
    aliases: tuple[str, ...] = ()  # further names
    reasoning_names: tuple[str, ...] = ("qwen3", "deepseek_r1")
    hidden: tuple[str, ...] = ()  # marks that say nothing
    ends: tuple[str, ...] = ()  # tokens that end an answer, whatever a checkpoint says
    goes_on: tuple[str, ...] = ()  # tokens that do not
    allows_several: bool = True  # whether the family's templates take several calls in one answer
    id_form: str = ""  # of calls, if its templates take no other: `short`, or with a name and a number
    is_taught: bool = True  # whether the model is known to write its calls so
    has_headers: bool = False  # whether an answer consists of messages with headers, as Harmony's
    signs: tuple[str, ...] = ()  # patterns that all are in the templates that do not write calls

    @property
    def marks(self) -> tuple[str, ...]:
        """What a vocabulary may have as one token."""
        return tuple(dict.fromkeys(mark for text in self._texts() for mark in _MARK.findall(text)))

    @cached_property
    def without_calls(self) -> "Format":
        """The same for an answer that may have none."""
        return replace(self, calls=())

    def _texts(self) -> Iterator[str]:
        for tags in (*self.thinking, *self.wraps):
            yield from tags
        yield from self.hidden
        for calls in self.calls:
            yield from (calls.open, *calls.each, calls.head, calls.end, calls.close, calls.optional)
            yield from calls.codec.marks
