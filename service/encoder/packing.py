"""A plan as arrays of its bucket's sizes: texts in one row, cut into the shortest windows that hold them."""

import itertools
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from service.encoder.batcher import EncoderPlan
from service.encoder.shapes import num_texts
from service.kernels.windows import windows
from service.models.encoders.packing import PackedTexts, PackedTokens


class PackedEncoderStep(NamedTuple):
    """The inputs of a step, on the host."""

    tokens: PackedTokens
    texts: PackedTexts
    window: np.ndarray  # a number: which of the bucket's windows no text crosses


def pack(plan: EncoderPlan) -> PackedEncoderStep:
    """Return the arrays of a plan's texts."""
    size, most_texts = plan.bucket, num_texts(plan.bucket)
    lengths = np.array([len(text.token_ids) for text in plan.texts], np.int32)
    window, starts = _shortest_windows(lengths.tolist(), size)
    of_text = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    in_text = np.arange(len(of_text), dtype=np.int32) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = starts[of_text] + in_text
    token_ids, positions, types = (np.zeros(size, np.int32) for _ in range(3))
    segments = np.full(size, most_texts, np.int32)
    flat = itertools.chain.from_iterable(text.token_ids for text in plan.texts)
    token_ids[places] = np.fromiter(flat, np.int32, len(places))
    positions[places], segments[places] = in_text, of_text
    types[places] = in_text >= np.array([text.second_from for text in plan.texts])[of_text]
    first, pooled_from, last = (np.zeros(most_texts, np.int32) for _ in range(3))
    first[: len(starts)], last[: len(starts)] = starts, starts + lengths - 1
    pooled_from[: len(starts)] = starts + [text.pooled_from for text in plan.texts]
    texts = PackedTexts(segments, first, pooled_from, last)
    return PackedEncoderStep(PackedTokens(token_ids, positions, types), texts, np.array(window, np.int32))


def _shortest_windows(lengths: Sequence[int], num_tokens: int) -> tuple[int, np.ndarray]:
    """Return which of the row's windows hold the texts, and the first token of each text."""
    choices = enumerate(windows(num_tokens))
    found = ((number, _place(lengths, num_tokens, window)) for number, window in choices if window >= max(lengths))
    return next((number, np.array(starts, np.int32)) for number, starts in found if starts is not None)


def _place(lengths: Sequence[int], num_tokens: int, window: int) -> list[int] | None:
    """Return the first token of each text, the longest placed first and each where least room is left; or None."""
    rooms = [(window, number) for number in range(num_tokens // window)]  # free tokens at a window's end, ascending
    starts = [0] * len(lengths)
    for text in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        position = bisect_left(rooms, (lengths[text], 0))
        if position == len(rooms):
            return None
        room, number = rooms.pop(position)
        starts[text] = (number + 1) * window - room
        insort(rooms, (room - lengths[text], number))
    return starts
