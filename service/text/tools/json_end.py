"""The end of a JSON object whose text arrives in pieces."""

import re

_STRUCTURE = re.compile(r"[\"{}\[\]]")
_STRING = re.compile(r"[\"\\]")


class JsonEnd:
    """Finds where one JSON object ends, in time linear in its text."""

    def __init__(self) -> None:
        self._depth = 0
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
            else:
                self._depth += 1 if found[0] in "{[" else -1
                if self._depth == 0:
                    return position
        return None
