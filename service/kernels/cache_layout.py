"""The layout of an engine's cache in plain numbers, so that sizing an engine imports no jax."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheLayout:
    """The size of a cache and its division into pages."""

    num_pages: int
    page_size: int  # token positions of one page
    windows: tuple[tuple[int, int], ...] = ()  # of layers whose pages are apart, the window and the number of pages
    num_states: int = 0  # slots of the states of recurrent layers

    def of(self, window: int | None) -> "CacheLayout":
        """Return the layout of the layers with a sliding window, or without one."""
        apart = dict(self.windows)
        return CacheLayout(self.num_pages if window is None else apart.get(window, self.num_pages), self.page_size)
