"""An answer's text to content and tool calls as it arrives, in time linear in the text.

The grammar of the request has held every call to its format, so what begins as a call is one, or is cut short.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from types import MappingProxyType

from service.text.tools.arguments import ArgumentReader, ElementArguments, JsonArguments
from service.text.tools.format import NAME, ToolFormat
from service.text.tools.parts import Arguments, CallStart, Content, Part

_NAME = rf"({NAME})"
_PUNCTUATION = " \t\r\n[],;}"  # around calls that share an opening, or have none


class CallParser:
    """Parses one answer; the joined results for its pieces do not depend on where it was cut."""

    def __init__(self, tool_format: ToolFormat, text_names: Mapping[str, Set[str]] = MappingProxyType({})) -> None:
        """Begin an answer.

        Args:
            tool_format: how its calls are written.
            text_names: for each function, the parameters whose values are unquoted texts, if the format has elements.
        """
        self.num_calls = 0
        self._format = tool_format
        self._text_names = text_names
        head = re.escape(tool_format.before_name) + _NAME + re.escape(tool_format.after_name)
        begins_arguments = "" if tool_format.has_elements else "(?={)"
        self._head = re.compile(rf"(?:{re.escape(tool_format.optional_opening)})?{head}{begins_arguments}")
        ends = (tool_format.after_arguments, tool_format.last)
        self._ends = [end for text in ends if (end := text.strip(_PUNCTUATION))]  # of calls that share an opening
        self._beginnings = [text for text in (tool_format.before_name[:1], tool_format.optional_opening) if text]
        self._text = ""  # not parsed yet
        self._spaces: list[str] = []  # before anything else; no content if a call follows
        self._has_content = False
        self._opened = ""  # what began the call whose name is not known yet
        self._arguments: ArgumentReader = JsonArguments()
        self._read: Callable[[], Iterator[Part]] = self._read_start

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that are in no part yet."""
        return len(self._opened) + sum(map(len, self._spaces)) + len(self._text)

    @property
    def is_inside_call(self) -> bool:
        """Whether a call has begun and has not ended."""
        if self._read == self._read_head:
            return bool(self._opened or not self._is_between())
        return self._read == self._read_arguments

    def push(self, text: str) -> list[Part]:
        """Append text and return the parts that it completes or continues."""
        self._text += text
        parts: list[Part] = []
        last = None
        while self._text and self._read != last:
            last = self._read
            parts += last()
        return parts

    def flush(self) -> list[Part]:
        """Return the text that was held back, at the end of the answer; of a call cut before its name, nothing.

        Where calls have no opening, what may have begun one is text.
        """
        if self._read == self._read_arguments and (rest := self._arguments.flush()):
            return [Arguments(self.num_calls - 1, rest)]
        if self._format.opening and self._opened:
            return []
        held = self._opened + "".join(self._spaces) + self._text
        if self.num_calls and not (self._read == self._read_head and self.is_inside_call):
            held = ""
        return [Content(held)] if held else []

    def _read_start(self) -> Iterator[Part]:
        """Hold spaces back; then look for a call, anywhere in the text if the format has an opening."""
        text = self._text.lstrip()
        if not text:
            self._spaces.append(self._text)
            self._text = ""
        elif self._format.opening:
            self._text, self._spaces = "".join(self._spaces) + self._text, []
            self._read = self._read_text
        elif any(text.startswith(beginning) for beginning in self._beginnings):
            self._opened = "".join(self._spaces) + self._text[: len(self._text) - len(text)]
            self._text, self._spaces = text, []
            self._read = self._read_head
        elif not any(beginning.startswith(text) for beginning in self._beginnings):
            self._text, self._spaces = "".join(self._spaces) + self._text, []
            self._read = self._read_rest
        yield from ()

    def _read_rest(self) -> Iterator[Part]:
        """Read an answer that has no call."""
        text, self._text = self._text, ""
        yield Content(text)

    def _read_text(self) -> Iterator[Part]:
        """Read content up to the opening of a call; hold back what may be a part of it."""
        opening = self._format.opening
        start = self._text.find(opening)
        if start < 0:
            sizes = range(min(len(opening) - 1, len(self._text)), 0, -1)
            start = len(self._text) - next((size for size in sizes if self._text.endswith(opening[:size])), 0)
        content, rest = self._text[:start], self._text[start:]
        is_open = rest.startswith(opening)
        if self._has_content or content.strip():
            self._has_content, self._text = True, rest
            if content:
                yield Content(content)
        if is_open:
            self._opened, self._text, self._read = opening, rest[len(opening) :], self._read_head

    def _read_head(self) -> Iterator[Part]:
        """Read up to the arguments of a call."""
        text = self._text
        self._skip_ends()
        if self._opened:  # a call that is cut before its name is text, white space and all
            self._opened += text[: len(text) - len(self._text)]
        found = self._head.match(self._text)
        if found is None:
            return
        self._opened, self._text = "", self._text[found.end() :]
        is_json = not self._format.has_elements
        self._arguments = JsonArguments() if is_json else ElementArguments(self._text_names.get(found[1], frozenset()))
        self._read = self._read_arguments
        self.num_calls += 1
        yield CallStart(self.num_calls - 1, found[1])

    def _read_arguments(self) -> Iterator[Part]:
        piece, end = self._arguments.push(self._text)
        self._text = "" if end is None else self._text[end:]
        if end is not None:
            self._read = self._read_between
        if piece:
            yield Arguments(self.num_calls - 1, piece)

    def _read_between(self) -> Iterator[Part]:
        """Skip what ends a call and separates it from the next."""
        opening = self._format.opening if self._format.opens_each else ""
        if not opening:
            self._read = self._read_head
        elif (start := self._text.find(opening)) >= 0:
            self._text, self._read = self._text[start + len(opening) :], self._read_head
        yield from ()

    def _skip_ends(self) -> None:
        """Skip what ends the calls before, and separates them from the next."""
        self._text = self._text.lstrip(_PUNCTUATION)
        while end := next((end for end in self._ends if self._text.startswith(end)), ""):
            self._text = self._text[len(end) :].lstrip(_PUNCTUATION)

    def _is_between(self) -> bool:
        """Return whether no call has begun behind the last one, as far as the text shows."""
        self._skip_ends()
        return not self._text or (self.num_calls > 0 and any(end.startswith(self._text) for end in self._ends))
