"""Windows of a packed row: equal parts whose edges no text crosses, so that attention stays within a window; no jax.

The cost of attention is the product of tokens and window. Every row has a few windows to choose from, the row itself
among them, and one program computes all of them.
"""

WINDOWS = (32, 128, 512, 2048)  # tokens


def windows(num_tokens: int) -> tuple[int, ...]:
    """Return the windows of a row of so many tokens, in ascending order; the last is the row itself."""
    return (*(window for window in WINDOWS if window < num_tokens and num_tokens % window == 0), num_tokens)
