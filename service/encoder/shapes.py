"""The sizes of an encoder's steps, known before any weight is read; no jax."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

SMALLEST_BUCKET = 16  # tokens
# A longer bucket than the first has a multiple of the second, so that attention can be computed in equal blocks of it.
LARGE_BUCKET, LARGE_MULTIPLE = 512, 128  # tokens
# The fewest tokens per text that a full bucket is made for; shorter texts are cut off at the number of texts.
TOKENS_PER_TEXT = 4
# The smallest bucket of a CPU that two steps may replace. MiniLM's steps of 16, 32, 64, 128, 256 and 512 tokens take 8,
# 12, 19, 28, 49 and 100 ms on two cores: two steps of less than 256 tokens take as long as the padded one.
CPU_SPLIT_FROM_TOKENS = 256


@dataclass(frozen=True)
class EncoderShapes:
    """The buckets of an encoder: numbers of tokens that a step may have, padding at the end included."""

    max_model_len: int
    max_step_tokens: int  # of texts that share a step; a longer text has a step of its own
    split_from_tokens: int | None = None  # the smallest bucket that two steps may replace; None: none is split

    @cached_property
    def buckets(self) -> tuple[int, ...]:
        """The sizes of steps in tokens, in ascending order."""
        largest = self.max_step_tokens
        if self.max_model_len > largest:
            multiple = LARGE_MULTIPLE if self.max_model_len > LARGE_BUCKET else 1
            largest = multiple * math.ceil(self.max_model_len / multiple)
        sizes = [SMALLEST_BUCKET]
        while sizes[-1] < largest:
            sizes.append(min(2 * sizes[-1], largest))
        return tuple(sizes)


def num_texts(bucket: int) -> int:
    """Return how many texts a step with a number of tokens may have."""
    return bucket // TOKENS_PER_TEXT


def smallest(buckets: Sequence[int], num_tokens: int) -> int:
    """Return the smallest bucket that holds a number of tokens.

    Raises:
        ValueError: none does, which is a fault of the caller's bounds.
    """
    return min(bucket for bucket in buckets if bucket >= num_tokens)
