"""The sizes of one engine: slots, pages, and the grid of steps that is compiled. Known before any weight is read."""

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from service.kernels.cache_layout import CacheLayout

SMALLEST_CHUNK = 16  # tokens
SUFFICIENT_CHUNK = 64  # tokens; a prompt in chunks of so many takes at most twice as long as in the best ones


class StepKind(StrEnum):
    """The two kinds of step."""

    PREFILL = "prefill"  # chunks of a few prompts
    DECODE = "decode"  # one token of each running sequence


class Bucket(NamedTuple):
    """A padded shape of a step."""

    num_seqs: int
    num_tokens: int  # of each sequence


@dataclass(frozen=True)
class BucketGrid:
    """All buckets of one kind of step."""

    buckets: tuple[Bucket, ...]

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self.buckets)

    def smallest(self, needed: Bucket) -> Bucket:
        """Return the bucket that holds the needed size along every dimension with the least padding in all.

        Raises:
            ValueError: no bucket holds it, which is a fault of the caller's bounds.
        """
        fitting = [bucket for bucket in self.buckets if all(map(int.__ge__, bucket, needed))]
        if not fitting:
            raise ValueError(f"no bucket holds {needed}")
        return min(fitting, key=math.prod)


@dataclass(frozen=True)
class PrefillShapes:
    """The sizes of prefill steps, and the fixed cost that they follow from."""

    max_tokens: int  # of one step
    num_seqs: tuple[int, ...]  # how many prompts may share a step, from 1 on
    step_cost_tokens: int  # reading all weights takes as long as computing so many tokens
    available_sizes: frozenset[int] | None = None  # the chunk sizes to use while others are compiled; None for all

    @cached_property
    def chunk_sizes(self) -> tuple[int, ...]:
        """The lengths, in tokens, of a step with a single prompt."""
        available = self.available_sizes
        return tuple(size for size in self.all_chunk_sizes if available is None or size in available)

    @property
    def all_chunk_sizes(self) -> tuple[int, ...]:
        """The lengths of a step with a single prompt once all are compiled."""
        if self.max_tokens <= 2 * SMALLEST_CHUNK:
            return (self.max_tokens,)
        if self.step_cost_tokens < 4 * SMALLEST_CHUNK:
            # Padding is most of what a short prompt could lose, so sizes lie close together.
            return (SMALLEST_CHUNK, *geometric_sizes(4 * SMALLEST_CHUNK, self.max_tokens, factor=2))
        # Halving at the top, where padding costs most, and quartering below.
        return (*geometric_sizes(SMALLEST_CHUNK, self.max_tokens // 2, factor=4), self.max_tokens)

    def width(self, num_seqs: int) -> int:
        """Return how many tokens of each prompt fit if `num_seqs` of them share a step."""
        return self.max_tokens // num_seqs


@dataclass(frozen=True)
class EngineShapes:
    """How much can run at once, and the shapes in which it runs."""

    num_slots: int
    num_pages: int
    page_size: int  # token positions
    max_model_len: int  # tokens of prompt and completion together
    max_prefill_tokens: int  # tokens of one prefill step
    prefill_seqs: tuple[int, ...] = (1, 2, 4)  # how many prompts may share a prefill step
    prefill_step_cost_tokens: int = 512  # what a prefill step costs besides its tokens, in tokens
    # Whether the host picks a sampling program by the options of a step; a CPU's branches as it runs, for free.
    # A GPU's branch copies its predicate to the host and waits for that.
    # Source: https://github.com/openxla/xla/blob/main/xla/backends/gpu/runtime/conditional_thunk.cc
    has_sampling_variants: bool = True
    has_whole_steps: bool = False  # whether decode steps are also compiled as one program each

    @property
    def facts(self) -> dict[str, Any]:
        """The sizes under the names that `/admin/stats` has for them."""
        sizes = asdict(self)
        sizes["prefill_rows"] = sizes.pop("prefill_seqs")
        del sizes["has_sampling_variants"], sizes["has_whole_steps"]
        return sizes

    @property
    def layout(self) -> CacheLayout:
        """How much cache a model lays out."""
        return CacheLayout(num_pages=self.num_pages, page_size=self.page_size)

    @cached_property
    def prefill(self) -> PrefillShapes:
        """The sizes of prefill steps; none for several prompts whose longest a single one's shorter chunk holds."""
        shapes = PrefillShapes(self.max_prefill_tokens, self.prefill_seqs, self.prefill_step_cost_tokens)
        enough = min((size for size in shapes.chunk_sizes if self.max_model_len <= size), default=math.inf)
        return replace(shapes, num_seqs=tuple(n for n in self.prefill_seqs if n == 1 or shapes.width(n) <= enough))

    @property
    def max_pages(self) -> int:
        """The most pages of a sequence, which every step's page table has room for."""
        return self.pages_for(self.max_model_len)

    def pages_for(self, num_tokens: int) -> int:
        """Return how many pages hold so many tokens."""
        return -(-num_tokens // self.page_size)

    @cached_property
    def prefill_grid(self) -> BucketGrid:
        """A chunk of one prompt, of several lengths, or of several prompts at once, together as long as the longest."""
        # One of the sizes holds every prompt.
        sizes = [size for size in self.prefill.chunk_sizes if not self._is_longer_than_needed(size)]
        # A step is shared among more prompts only where half as many would not hold all that wait.
        counts = [count for count in self.prefill.num_seqs[1:] if count // 2 < self.num_slots]
        together = [Bucket(count, self.prefill.width(count)) for count in counts]
        return BucketGrid((*(Bucket(1, size) for size in sizes), *together))

    @cached_property
    def decode_grid(self) -> BucketGrid:
        """Many sequences, one token each."""
        return BucketGrid(tuple(Bucket(size, 1) for size in self._slot_sizes))

    @property
    def grids(self) -> dict[StepKind, BucketGrid]:
        """The buckets of each kind of step."""
        return {StepKind.PREFILL: self.prefill_grid, StepKind.DECODE: self.decode_grid}

    @property
    def buckets(self) -> list[tuple[StepKind, Bucket]]:
        """All buckets."""
        return [(kind, bucket) for kind, grid in self.grids.items() for bucket in grid]

    @property
    def all_seq_counts(self) -> list[int]:
        """How many sequences a step may have, of either kind."""
        return sorted({bucket.num_seqs for _, bucket in self.buckets})

    def _is_longer_than_needed(self, num_tokens: int) -> bool:
        """Return whether a shorter chunk holds all of a sequence."""
        return any(self.max_model_len <= size < num_tokens for size in self.prefill.chunk_sizes)

    @cached_property
    def _slot_sizes(self) -> tuple[int, ...]:
        # A sequence that runs alone must not pay for a neighbour; from four on a step costs little more for twice as
        # many sequences.
        if self.num_slots <= 4:
            return tuple(sorted({1, self.num_slots}))
        return (1, *geometric_sizes(4, self.num_slots, factor=2))


class AvailableSteps(NamedTuple):
    """The steps that run without waiting for an executable: all, or those that a start has compiled so far."""

    grids: Mapping[StepKind, BucketGrid]
    prefill: PrefillShapes
    num_slots: int  # as many as the widest decode step serves
    is_complete: bool


def available_steps(shapes: EngineShapes, compiled: Set[tuple[StepKind, Bucket]]) -> AvailableSteps:
    """Return the steps that a scheduler may plan with, given those that are compiled: at least `sufficient_buckets`."""
    grids = {
        kind: BucketGrid(tuple(bucket for bucket in grid if (kind, bucket) in compiled))
        for kind, grid in shapes.grids.items()
    }
    has_all_steps = compiled >= set(shapes.buckets)
    prefill = shapes.prefill
    if not has_all_steps:
        counts = {bucket.num_seqs for bucket in grids[StepKind.PREFILL]}
        prefill = replace(
            prefill,
            num_seqs=tuple(count for count in prefill.num_seqs if count in counts),
            available_sizes=frozenset(b.num_tokens for b in grids[StepKind.PREFILL] if b.num_seqs == 1),
        )
    num_slots = max(bucket.num_seqs for bucket in grids[StepKind.DECODE])
    return AvailableSteps(grids, prefill, num_slots, has_all_steps)


def sufficient_buckets(shapes: EngineShapes) -> list[tuple[StepKind, Bucket]]:
    """Return two steps that serve any request, one at a time: one for any chunk of its prompt, one for its decoding."""
    alone = [bucket for bucket in shapes.prefill_grid if bucket.num_seqs == 1]
    usual = [bucket for bucket in alone if bucket.num_tokens >= SUFFICIENT_CHUNK] or alone[-1:]
    return [(StepKind.PREFILL, min(usual)), (StepKind.DECODE, min(shapes.decode_grid))]


def geometric_sizes(smallest: int, largest: int, *, factor: int) -> tuple[int, ...]:
    """Return sizes from `smallest`, each `factor` times the one before, and always `largest` as the last."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= factor
    return (*sizes, largest)
