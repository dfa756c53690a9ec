"""The tokens of a packed row that a token can see: those of its window, and of its text those in sight; no jax.

Windows are equal parts of a row whose edges no text crosses. The cost of attention is the product of tokens and window.
Every row has a few windows to choose from, the row itself among them, and one program computes all of them.
"""

from dataclasses import dataclass

WINDOWS = (32, 128, 512, 2048)  # tokens


@dataclass(frozen=True)
class Sight:
    """The tokens of its own text that a token sees."""

    is_causal: bool = False  # none that follow it
    reach: int | None = None  # none farther away, in tokens to either side


WHOLE_TEXT = Sight()


def windows(num_tokens: int) -> tuple[int, ...]:
    """Return the windows of a row of so many tokens, in ascending order; the last is the row itself."""
    return (*(window for window in WINDOWS if window < num_tokens and num_tokens % window == 0), num_tokens)
