"""A plan as arrays of its bucket's sizes: one text after another, padding at the end."""

import itertools
from typing import NamedTuple

import numpy as np

from service.encoder.batcher import Plan
from service.encoder.shapes import num_texts
from service.models.encoders.packing import PackedTexts, PackedTokens


class PackedStep(NamedTuple):
    """The inputs of a step, on the host."""

    tokens: PackedTokens
    texts: PackedTexts


def pack(plan: Plan) -> PackedStep:
    """Return the arrays of a plan's texts."""
    size, most_texts = plan.bucket, num_texts(plan.bucket)
    lengths = np.array([len(text.token_ids) for text in plan.texts], np.int32)
    ends = np.cumsum(lengths, dtype=np.int32)
    starts, total = ends - lengths, int(ends[-1])
    token_ids, positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
    segments = np.full(size, most_texts, np.int32)
    token_ids[:total] = np.fromiter(itertools.chain.from_iterable(t.token_ids for t in plan.texts), np.int32, total)
    segments[:total] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    positions[:total] = np.arange(total, dtype=np.int32) - np.repeat(starts, lengths)
    first, last = np.zeros(most_texts, np.int32), np.zeros(most_texts, np.int32)
    first[: len(starts)], last[: len(ends)] = starts, ends - 1
    types = np.zeros(size, np.int32)
    types[:total] = positions[:total] >= np.repeat([text.second_from for text in plan.texts], lengths)
    return PackedStep(PackedTokens(token_ids, positions, types), PackedTexts(segments, first, last))
