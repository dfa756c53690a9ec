"""Cuts a text before the first stop string, wherever the borders of its pieces lie.

The first is the one that is complete first, so that no token is generated beyond it; of several that end at one
character, the longest. What could still become a stop string is held back.
"""

from collections.abc import Sequence


class StopStrings:
    """The stop strings of one request, and the text that is held back for them."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)  # each with at least one character
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text; return what may be sent, and whether a stop string was met."""
        if not self._stops:
            return text, False
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            self._held = ""
            return text[: min(matches)[1]], True
        border = min(self._first_possible_start(text, stop) for stop in self._stops)
        self._held = text[border:]
        return text[:border], False

    def flush(self) -> str:
        """Return what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _first_possible_start(text: str, stop: str) -> int:
        """Return where the longest end of `text` that begins `stop` begins; the text's length if none does."""
        start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while start >= 0 and not stop.startswith(text[start:]):
            start = text.find(stop[0], start + 1)
        return len(text) if start < 0 else start
