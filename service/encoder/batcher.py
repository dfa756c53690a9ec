"""The texts that share the next step: in turn one text of each request, the longest that still fits; no jax.

A request of thousands of texts thus delays a request of one text by a step, and long texts leave room for short ones.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from service.encoder.request import EncodeRequest
from service.encoder.shapes import TOKENS_PER_TEXT, EncoderShapes, num_texts, smallest

# Of a bucket: where the waiting texts would fill less of it, a full smaller step and the rest take less time together.
MOST_SPLIT_SHARE = 0.75


class PlannedText(NamedTuple):
    """One text of a step."""

    request: EncodeRequest
    number: int  # among the request's texts

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The text's token ids."""
        return self.request.texts[self.number]

    @property
    def second_from(self) -> int:
        """The first token of type 1; the number of tokens if there is none."""
        return self.request.second_from[self.number] if self.request.second_from else len(self.token_ids)

    @property
    def pooled_from(self) -> int:
        """The first token that is pooled; the last token where the prompt is the whole text."""
        return min(self.request.prompt_tokens, len(self.token_ids) - 1)


class EncoderPlan(NamedTuple):
    """The texts of one step."""

    bucket: int  # tokens
    texts: Sequence[PlannedText]

    @property
    def num_tokens(self) -> int:
        """The tokens of all texts."""
        return sum(len(text.token_ids) for text in self.texts)

    @property
    def wants_tokens(self) -> bool:
        """Whether the hidden states of a text's tokens are asked for."""
        return any(text.request.wants_tokens for text in self.texts)

    @property
    def size(self) -> int:
        """The tokens that a bucket must have to hold the texts."""
        return max(self.num_tokens, len(self.texts) * TOKENS_PER_TEXT)


@dataclass
class _Waiting:
    """The texts of a request that no step has taken, as (length, index) in ascending order."""

    request: EncodeRequest
    texts: list[tuple[int, int]]

    def take(self, most_tokens: int) -> PlannedText | None:
        """Take the longest text within a number of tokens."""
        position = bisect_right(self.texts, most_tokens, key=lambda text: text[0])
        return PlannedText(self.request, self.texts.pop(position - 1)[1]) if position else None


class Batcher:
    """The texts that wait, by request."""

    def __init__(self, shapes: EncoderShapes) -> None:
        """Begin with no texts."""
        self._shapes = shapes
        self._queue: deque[_Waiting] = deque()
        self.num_tokens = 0  # of all waiting texts

    def __len__(self) -> int:
        """Return the number of requests with waiting texts."""
        return len(self._queue)

    @property
    def fills_a_step(self) -> bool:
        """Whether the waiting texts have enough tokens for a full step."""
        return self.num_tokens >= self._shapes.max_step_tokens

    def add(self, request: EncodeRequest) -> None:
        """Queue the texts of a request."""
        texts = sorted((len(token_ids), index) for index, token_ids in enumerate(request.texts))
        self.num_tokens += sum(length for length, _ in texts)
        self._queue.append(_Waiting(request, texts))

    def remove(self, request_id: str) -> None:
        """Drop the waiting texts of a request, if it has any."""
        for waiting in [waiting for waiting in self._queue if waiting.request.id == request_id]:
            self._queue.remove(waiting)
            self.num_tokens -= sum(length for length, _ in waiting.texts)

    def plan(self, buckets: Sequence[int]) -> EncoderPlan | None:
        """Take the texts of the next step; None if none wait.

        Args:
            buckets: those that a step may have now, in ascending order; the last holds any text.
        """
        if not self._queue:
            return None
        # The request that has waited longest chooses first, so that its longest text is not passed over for ever.
        longest = self._queue[0].texts[-1][0]
        room = self._room(buckets, smallest(buckets, longest))
        texts = self._take(room, num_texts(room))
        self._queue.rotate(-1)
        self._queue = deque(waiting for waiting in self._queue if waiting.texts)
        plan = EncoderPlan(room, texts)
        self.num_tokens -= plan.num_tokens
        return plan._replace(bucket=smallest(buckets, plan.size))

    def _room(self, buckets: Sequence[int], least: int) -> int:
        """Return the tokens that the next step may have, of which `least` are for the longest text."""
        shared = [bucket for bucket in buckets if least <= bucket <= self._shapes.max_step_tokens]
        largest = max(shared, default=least)
        holding = smallest(shared, self.num_tokens) if self.num_tokens <= largest and shared else largest
        smaller = max((bucket for bucket in shared if bucket < self.num_tokens), default=None)
        split_from = self._shapes.split_from_tokens
        if split_from is None or holding < split_from or smaller is None:
            return largest
        return smaller if self.num_tokens <= MOST_SPLIT_SHARE * holding else largest

    def _take(self, room: int, most_texts: int) -> list[PlannedText]:
        taken: list[PlannedText] = []
        waiting = list(self._queue)
        while waiting and len(taken) < most_texts:
            still = []
            for entry in waiting[: most_texts - len(taken)]:
                text = entry.take(room)
                if text is not None:
                    taken.append(text)
                    room -= len(text.token_ids)
                    still.append(entry)
            waiting = still
        return taken
