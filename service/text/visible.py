"""The visible part of one answer: its parts up to the first stop string of its content, and the content's tokens.

Stop strings are looked for only in the content, so that no mark, no thinking and no call ends an answer. Each token
whose text is content, or a part of it, is one of the content's.
"""

from collections import deque
from collections.abc import Sequence

from service.text.detokenizer import StopStrings
from service.text.formats.parts import Content, Part
from service.text.formats.reader import AnswerReader


class VisibleText[T]:
    """The visible parts of one answer, whose tokens come with anything that is said of each."""

    def __init__(self, reader: AnswerReader | None, stops: StopStrings, *, min_tokens: int = 0) -> None:
        """Begin an answer.

        Args:
            reader: splits the text; None if all of it is content.
            stops: cuts the content.
            min_tokens: tokens before which a complete stop string does not count.
        """
        self.stop: str | None = None  # the stop string that has ended the answer
        self._reader, self._stops, self._min_tokens = reader, stops, min_tokens
        self._num_tokens = 0
        self._num_chars = 0  # of the text
        self._silent: list[T] = []  # tokens whose characters are not complete, or that have none
        self._read: deque[tuple[int, int, Sequence[T]]] = deque()  # tokens of text in no part yet, with begin and end
        self._num_content = 0  # characters of content, those that are held back included
        self._num_shown = 0
        self._tokens: deque[tuple[int, Sequence[T]]] = deque()  # of content that was not taken, with its begin
        self._is_content = reader is None

    @property
    def num_thinking(self) -> int:
        """How many tokens are thinking, so far."""
        return 0 if self._reader is None else self._reader.num_thinking

    @property
    def is_inside_call(self) -> bool:
        """Whether a call has begun and has not ended."""
        return self._reader is not None and self._reader.is_inside_call

    def push(self, text: str, token: T, token_id: int | None = None) -> list[Part]:
        """Append a token with the characters that it completes, and return the parts to show; none behind a stop."""
        self._num_tokens += 1
        self._silent.append(token)
        if not text:
            return self._shown([] if self._reader is None else self._reader.push(text, token_id))
        self._read.append((self._num_chars, self._num_chars + len(text), self._silent))
        self._silent = []
        self._num_chars += len(text)
        if self._reader is None:
            return self._shown([Content(text, self._num_chars - len(text))])
        return self._shown(self._reader.push(text, token_id))

    def flush(self) -> list[Part]:
        """Return the parts that were held back, at the end."""
        parts = self._shown([] if self._reader is None else self._reader.flush(), is_over=True)
        if self.stop is None and (held := self._stops.flush()):
            self._num_shown += len(held)
            parts.append(Content(held))
        if self.stop is None and self._is_content:
            self._tokens.append((-1, self._silent))
            self._silent = []
        return parts

    def take_tokens(self) -> list[T]:
        """Return the tokens of the content that was shown since the last call."""
        taken: list[T] = []
        while self._tokens and self._tokens[0][0] < self._num_shown:
            taken += self._tokens.popleft()[1]
        return taken

    def _shown(self, parts: Sequence[Part], *, is_over: bool = False) -> list[Part]:
        shown: list[Part] = []
        end = self._num_chars - (0 if self._reader is None or is_over else self._reader.num_held)
        for part in parts:
            self._is_content = isinstance(part, Content)
            if not isinstance(part, Content):
                if held := self._stops.flush():  # no content goes on behind a call
                    self._num_shown += len(held)
                    shown.append(Content(held))
                shown.append(part)
                continue
            self._see(part.text, part.begin)
            text, self.stop = self._stops.push(part.text, may_stop=self._num_tokens >= self._min_tokens)
            self._num_shown += len(text)
            if text:
                shown.append(Content(text))
            if self.stop is not None:
                return shown
        while self._read and self._read[0][1] <= end:  # of marks, thinking and calls
            self._read.popleft()
        return shown

    def _see(self, content: str, begin: int) -> None:
        """Assign the tokens of a content that begins at a character of the text."""
        end = begin + len(content)
        while self._read and self._read[0][0] < end:
            of_token, end_of_token, tokens = self._read.popleft()
            if end_of_token > begin:
                self._tokens.append((self._num_content + max(of_token - begin, 0), tokens))
                if end_of_token > end:
                    self._read.appendleft((end, end_of_token, ()))
        self._num_content += len(content)
