"""An answer's text to content and tool calls as it arrives, in time linear in the text.

The grammar of the request has held every call to its format, so what begins as a call is one, or is cut short.
"""

import re
from collections.abc import Callable, Iterator

from service.text.tools.format import ToolFormat
from service.text.tools.json_end import JsonEnd
from service.text.tools.parts import Arguments, CallStart, Content, Part

_NAME = r"([a-zA-Z0-9_-]{1,64})"
_PUNCTUATION = " \t\r\n[],;}"  # around calls that share an opening, or have none


class CallParser:
    """Parses one answer; the joined results for its pieces do not depend on where it was cut."""

    def __init__(self, tool_format: ToolFormat) -> None:
        self.num_calls = 0
        self._format = tool_format
        head = re.escape(tool_format.before_name) + _NAME + re.escape(tool_format.after_name)
        self._head = re.compile(rf"(?:{re.escape(tool_format.optional_opening)})?{head}(?={{)")
        self._beginnings = [text for text in (tool_format.before_name[:1], tool_format.optional_opening) if text]
        self._text = ""  # not parsed yet
        self._spaces: list[str] = []  # before anything else; no content if a call follows
        self._has_content = False
        self._opened = ""  # what began the call whose name is not known yet
        self._json = JsonEnd()
        self._read: Callable[[], Iterator[Part]] = self._read_start

    @property
    def is_inside_call(self) -> bool:
        """Whether a call has begun and has not ended."""
        if self._read == self._read_head:
            return bool(self._opened or self._text.lstrip(_PUNCTUATION))
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
        """Return the text that was held back, at the end of the answer; a call that was cut before its name is text."""
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
        self._text = self._text.lstrip(_PUNCTUATION)
        found = self._head.match(self._text)
        if found is None:
            return
        self._opened, self._text = "", self._text[found.end() :]
        self._json, self._read = JsonEnd(), self._read_arguments
        self.num_calls += 1
        yield CallStart(self.num_calls - 1, found[1])

    def _read_arguments(self) -> Iterator[Part]:
        end = self._json.find(self._text)
        piece = self._text[:end]
        self._text = self._text[len(piece) :]
        if end is not None:
            self._read = self._read_between
        yield Arguments(self.num_calls - 1, piece)

    def _read_between(self) -> Iterator[Part]:
        """Skip what ends a call and separates it from the next."""
        opening = self._format.opening if self._format.opens_each else ""
        if not opening:
            self._read = self._read_head
        elif (start := self._text.find(opening)) >= 0:
            self._text, self._read = self._text[start + len(opening) :], self._read_head
        yield from ()
