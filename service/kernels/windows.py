"""Attention windows over a packed row of texts; imports no jax.

Windows are equal parts of a row whose edges no text crosses. The cost of attention is proportional to tokens times
window size. Every row has a few possible window sizes, including the whole row, and one program supports all of them.
"""

from dataclasses import dataclass

WINDOWS = (32, 128, 512, 2048)  # tokens


@dataclass(frozen=True)
class Sight:
    """The tokens of its own text that a token sees."""

    is_causal: bool = False  # only the token itself and earlier ones
    reach: int | None = None  # the maximum distance in tokens to either side


WHOLE_TEXT = Sight()


def windows(num_tokens: int) -> tuple[int, ...]:
    """Return the possible window sizes of a row in ascending order; the last is the whole row."""
    return (*(window for window in WINDOWS if window < num_tokens and num_tokens % window == 0), num_tokens)
