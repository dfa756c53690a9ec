"""The sizes of one engine: slots, pages, and the grid of steps that is compiled. Known before any weight is."""

from dataclasses import dataclass
from functools import cached_property

from service.compile.buckets import Bucket, BucketGrid, geometric_sizes
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.plan import StepKind
from service.kernels.paging import CacheLayout

# Coarse on purpose: each size multiplies the number of executables, and a padded row or page costs less than a compile.
CONTEXT_FACTOR = 4
SMALLEST_CONTEXT = 256  # tokens
COPY_FACTOR = 4
SMALLEST_COPY, LARGEST_COPY = 4, 64  # pages


@dataclass(frozen=True)
class EngineShapes:
    """What can run at once, and the shapes it runs in."""

    num_slots: int
    num_pages: int
    page_size: int  # token positions
    max_context: int  # tokens of prompt and completion together
    max_prefill_tokens: int  # tokens of one prefill step
    prefill_rows: tuple[int, ...] = (1, 2, 4)  # how many prompts may share a prefill step
    prefill_step_cost_tokens: int = 512  # what a prefill step costs besides its tokens, in tokens

    @property
    def layout(self) -> CacheLayout:
        """How much cache a model shall lay out."""
        return CacheLayout(
            num_pages=self.num_pages,
            page_size=self.page_size,
            slot_sizes=self._slot_sizes,
            context_sizes=tuple(num_pages * self.page_size for num_pages in self._page_sizes),
        )

    @cached_property
    def chunking(self) -> Chunking:
        """How prompts are cut into prefill steps."""
        return Chunking(self.max_prefill_tokens, self.prefill_rows, self.prefill_step_cost_tokens)

    def pages_for(self, num_tokens: int) -> int:
        """Return how many pages hold so many tokens."""
        return -(-num_tokens // self.page_size)

    @cached_property
    def prefill_grid(self) -> BucketGrid:
        """A chunk of one prompt, of several lengths, or of several prompts at once, together as long as the longest."""
        chunking = self.chunking
        alone = [(1, size) for size in chunking.sizes]
        # A cut into more rows is used only where half as many would not do for all that wait.
        together = [(rows, chunking.width(rows)) for rows in chunking.rows[1:] if rows // 2 < self.num_slots]
        return self._grid([*alone, *together])

    @cached_property
    def decode_grid(self) -> BucketGrid:
        """Many sequences, one token each."""
        return self._grid([(size, 1) for size in self._slot_sizes])

    @property
    def grids(self) -> dict[StepKind, BucketGrid]:
        """The buckets of each kind of step."""
        return {StepKind.PREFILL: self.prefill_grid, StepKind.DECODE: self.decode_grid}

    @property
    def buckets(self) -> list[tuple[StepKind, Bucket]]:
        """All buckets."""
        return [(kind, bucket) for kind, grid in self.grids.items() for bucket in grid]

    def row_sizes(self, kind: StepKind) -> list[int]:
        """Return how many rows a step of a kind may have."""
        return sorted({bucket["num_seqs"] for bucket in self.grids[kind]})

    def sizes(self, kind: StepKind) -> list[tuple[int, int]]:
        """Return how many rows of how many tokens a step of a kind may have, whatever its context."""
        return sorted({(bucket["num_seqs"], bucket["num_tokens"]) for bucket in self.grids[kind]})

    @property
    def copy_sizes(self) -> tuple[int, ...]:
        """How many pages one copy between row and pages may be about."""
        return geometric_sizes(SMALLEST_COPY, LARGEST_COPY, factor=COPY_FACTOR)

    def _grid(self, rows_and_tokens: list[tuple[int, int]]) -> BucketGrid:
        return BucketGrid(
            tuple(
                {"num_seqs": num_seqs, "num_tokens": num_tokens, "num_pages": num_pages}
                for num_seqs, num_tokens in rows_and_tokens
                for num_pages in self._page_sizes
                if not self._is_wider_than_needed(num_tokens, num_pages)
            )
        )

    def _is_wider_than_needed(self, num_tokens: int, num_pages: int) -> bool:
        """Tell whether a shorter chunk fills all of a context already."""
        context = num_pages * self.page_size
        return any(context <= size < num_tokens for size in self.chunking.sizes)

    @cached_property
    def _slot_sizes(self) -> tuple[int, ...]:
        # One alone must not pay for a neighbour; from four on a step costs little more for twice the rows.
        if self.num_slots <= 4:
            return tuple(sorted({1, self.num_slots}))
        return (1, *geometric_sizes(4, self.num_slots, factor=2))

    @cached_property
    def _page_sizes(self) -> tuple[int, ...]:
        largest = self.pages_for(self.max_context)
        smallest = min(self.pages_for(SMALLEST_CONTEXT), largest)
        return geometric_sizes(smallest, largest, factor=CONTEXT_FACTOR)
