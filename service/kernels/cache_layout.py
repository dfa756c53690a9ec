"""The layout of an engine's cache in plain numbers, so that sizing an engine imports no jax."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheLayout:
    """The size of a cache and its division into pages."""

    num_pages: int
    page_size: int  # token positions of one page
