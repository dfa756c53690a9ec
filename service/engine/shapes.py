"""The sizes of one engine: slots, pages, and the grid of steps that is compiled. Known before any weight is."""

from dataclasses import dataclass
from functools import cached_property

from service.compile.buckets import BucketGrid, geometric_sizes
from service.models.interface import CacheLayout

# Coarse on purpose: each size multiplies the number of executables, and a padded row or page costs less than a compile.
SEQS_FACTOR = 4
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
        return CacheLayout(self.num_pages, self.page_size, self.num_slots)

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
                "num_seqs": geometric_sizes(1, self.num_slots, factor=SEQS_FACTOR),
                "num_tokens": (1,),
                "num_pages": self._page_sizes,
            }
        )

    @cached_property
    def _page_sizes(self) -> tuple[int, ...]:
        largest = self.pages_for(self.max_context)
        smallest = min(self.pages_for(SMALLEST_CONTEXT), largest)
        return geometric_sizes(smallest, largest, factor=CONTEXT_FACTOR)
