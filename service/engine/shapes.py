"""The sizes of one engine: slots, pages, and the grid of steps that is compiled. Known before any weight is."""

from dataclasses import dataclass
from functools import cached_property

from service.compile.buckets import BucketGrid, geometric_sizes
from service.kernels.paging import CacheLayout

# Coarse on purpose: each size multiplies the number of executables, and a padded row or page costs less than a compile.
TOKENS_FACTOR = 4
CONTEXT_FACTOR = 4
SMALLEST_CONTEXT = 256  # tokens
SMALLEST_CHUNK = 16  # tokens


@dataclass(frozen=True)
class EngineShapes:
    """What can run at once, and the shapes it runs in."""

    num_slots: int
    num_pages: int
    page_size: int  # token positions
    max_context: int  # tokens of prompt and completion together
    max_prefill_tokens: int  # tokens of one prefill step

    @property
    def layout(self) -> CacheLayout:
        """How much cache a model shall lay out."""
        return CacheLayout(
            num_pages=self.num_pages,
            page_size=self.page_size,
            slot_sizes=self.decode_grid.sizes["num_seqs"],
            context_sizes=tuple(num_pages * self.page_size for num_pages in self._page_sizes),
        )

    def pages_for(self, num_tokens: int) -> int:
        """Return how many pages hold so many tokens."""
        return -(-num_tokens // self.page_size)

    @cached_property
    def prefill_grid(self) -> BucketGrid:
        """One sequence, a chunk of its prompt."""
        chunk = min(self.max_prefill_tokens, self.max_context)
        return BucketGrid(
            {
                "num_seqs": (1,),
                "num_tokens": geometric_sizes(min(SMALLEST_CHUNK, chunk), chunk, factor=TOKENS_FACTOR),
                "num_pages": self._page_sizes,
            }
        )

    @cached_property
    def decode_grid(self) -> BucketGrid:
        """Many sequences, one token each."""
        return BucketGrid(
            {
                "num_seqs": self._slot_sizes,
                "num_tokens": (1,),
                "num_pages": self._page_sizes,
            }
        )

    @cached_property
    def _slot_sizes(self) -> tuple[int, ...]:
        # One alone must not pay for a neighbour; from four on a step costs little more for twice the rows.
        return (
            (1, *geometric_sizes(4, self.num_slots, factor=2))
            if self.num_slots > 4
            else tuple(sorted({1, self.num_slots}))
        )

    @cached_property
    def _page_sizes(self) -> tuple[int, ...]:
        largest = self.pages_for(self.max_context)
        smallest = min(self.pages_for(SMALLEST_CONTEXT), largest)
        return geometric_sizes(smallest, largest, factor=CONTEXT_FACTOR)
