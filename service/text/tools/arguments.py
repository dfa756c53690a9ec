"""The arguments of one call, as the JSON that clients get, read from a text that arrives in pieces."""

import json
import re
from collections.abc import Set
from typing import Protocol

from service.text.tools.json_end import JsonEnd

NAME_END = ">\n"
ELEMENT_END = "\n</parameter>"
_ELEMENT = re.compile(r"\s*<parameter=([^>\n]+)>\n")
_END = re.compile(r"\s*</function>")


class ArgumentReader(Protocol):
    """Reads the arguments of one call."""

    def push(self, text: str) -> tuple[str, int | None]:
        """Append text; return the JSON that it adds, and the position after the arguments, None if they go on."""
        ...

    def flush(self) -> str:
        """Return the JSON that was held back, at the end of an answer that was cut."""
        ...


class JsonArguments:
    """Reads arguments that are a JSON object."""

    def __init__(self) -> None:
        self._end = JsonEnd()

    def push(self, text: str) -> tuple[str, int | None]:
        """Append text; nothing is held back."""
        end = self._end.find(text)
        return text[:end], end

    def flush(self) -> str:
        """Return nothing."""
        return ""


class ElementArguments:
    """Reads arguments that are elements, `<parameter=name>`, the value, and `</parameter>` on lines of their own."""

    def __init__(self, text_names: Set[str]) -> None:
        """Begin a call.

        Args:
            text_names: the parameters whose values are texts as they are; those of others are JSON.
        """
        self._text_names = text_names
        self._held = ""  # not read yet
        self._num_elements = 0
        self._is_in_element = self._is_text = False

    def push(self, text: str) -> tuple[str, int | None]:
        """Append text; what may belong to the end of an element is held back."""
        num_held, position = len(self._held), 0
        self._held += text
        found: list[str] = []
        while True:
            if self._is_in_element:
                end = self._held.find(ELEMENT_END, position)
                stop = self._first_possible_end(position) if end < 0 else end
                found.append(self._value(self._held[position:stop]))
                position = stop
                if end < 0:
                    break
                found.append('"' if self._is_text else "")
                position, self._is_in_element = end + len(ELEMENT_END), False
            elif element := _ELEMENT.match(self._held, position):
                position = element.end()
                found.append(self._open(element[1]))
            elif end_of_all := _END.match(self._held, position):
                found.append("}" if self._num_elements else "{}")
                return "".join(found), end_of_all.end() - num_held
            else:
                break
        self._held = self._held[position:]
        return "".join(found), None

    def flush(self) -> str:
        """Return the text of a value that looked like the beginning of its end."""
        return self._value(self._held) if self._is_in_element else ""

    def _open(self, name: str) -> str:
        self._is_in_element, self._is_text = True, name in self._text_names
        self._num_elements += 1
        separator, quote = "{" if self._num_elements == 1 else ", ", '"' if self._is_text else ""
        return f"{separator}{json.dumps(name, ensure_ascii=False)}: {quote}"

    def _value(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=False)[1:-1] if self._is_text else text

    def _first_possible_end(self, position: int) -> int:
        """Return where the longest suffix of the text begins that an end of the element may continue."""
        sizes = range(min(len(ELEMENT_END) - 1, len(self._held) - position), 0, -1)
        size = next((size for size in sizes if self._held.endswith(ELEMENT_END[:size])), 0)
        return len(self._held) - size
