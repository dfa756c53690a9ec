"""The sizes of one engine: slots, pages, and the steps that are compiled. Known before any weight is read.

A step has a place for one token of each slot, and rows for prompts. A row is a block of adjacent positions that begins
at a multiple of its length, so that a prompt of any length fills as many as it needs, and no two rows share a page.
"""

from collections.abc import Iterable, Set
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from service.kernels.cache_layout import CacheLayout
from service.models.adapter_arrays import AdapterShapes

USUAL_ROW_TOKENS = 64


class StepKind(StrEnum):
    """What a step computes."""

    PREFILL = "prefill"  # chunks of prompts
    DECODE = "decode"  # one token of each running sequence
    VERIFY = "verify"  # the same, and the tokens that were drafted for some of them, or that states have not read
    MIXED = "mixed"  # both
    ENCODE = "encode"  # a part of the encoder, of one memory


class Bucket(NamedTuple):
    """A padded shape of a step."""

    num_seqs: int  # slots, from the first on: each decodes, or samples the token after a prompt
    num_rows: int  # of prompts

    @property
    def name(self) -> str:
        """The part of a program's name that says its shape."""
        return f"seqs{self.num_seqs}-rows{self.num_rows}"


@dataclass(frozen=True)
class MemoryShapes:
    """The sizes of a sequence's memory, and of what it is encoded from."""

    length: int  # positions
    num_parts: int  # in which it is encoded, one between two steps
    medium: tuple[int, int]  # frames, features of each


@dataclass(frozen=True)
class RowShapes:
    """The sizes of the rows that media take in place of tokens, and of what they are encoded from."""

    num_places: int  # for rows of media at the same time
    place_rows: int  # of one place; a medium takes as many places as it needs
    num_rows: tuple[int, ...]  # to which media are padded for their encoding, smallest first
    num_parts: int  # in which a medium is encoded, one between two steps
    features: tuple[int, ...]  # of a medium; of one that has any shape, patches of a row and values of a patch
    num_added: int = 0  # of the decoder's first layers, after each of which media add to the hidden states
    has_grid: bool = False  # whether positions are those of time, row and column
    is_whole: bool = False  # whether the rows of a medium, which fill one place, see each other: a step computes all

    @property
    def has_any_shape(self) -> bool:
        """Whether media have any shape: their features are patches, and how many are in a column and a row."""
        return len(self.features) == 2

    def places_for(self, num_rows: int) -> int:
        """Return how many places a number of rows takes."""
        return -(-num_rows // self.place_rows)

    def padded(self, num_rows: int) -> int:
        """Return to how many rows a medium is padded."""
        return next(size for size in self.num_rows if size >= num_rows)


def window_pages(window: int, page_size: int) -> int:
    """Return the most pages that what a token sees of a window lies in."""
    return -(-(window - 1) // page_size) + 1


def step_pages(step_tokens: int, page_size: int) -> int:
    """Return the most pages that a step's tokens of one prompt lie in."""
    return -(-step_tokens // page_size) + 1


@dataclass(frozen=True)
class WindowShapes:
    """The pages of the layers with one sliding window, which are apart: a sequence gives up those behind the window.

    A step's table of such pages begins at a multiple of `table_align` before the window, so that kernels divide a
    sequence's positions into the same parts as without a window.
    """

    window: int  # visible positions, including the token's own
    num_pages: int
    table_pages: int  # of a sequence, which a step's table has room for
    table_align: int  # positions

    def first_needed(self, position: int) -> int:
        """Return the first position that a token at a position sees, or one after it."""
        return max(position - self.window + 1, 0)


@dataclass(frozen=True)
class StateShapes:
    """The slots of the states of recurrent layers: of running sequences, and of prefixes that can be found."""

    num_states: int
    interval: int  # positions between two that a long prompt leaves findable, a multiple of a row's


@dataclass(frozen=True)
class EngineShapes:
    """How much can run at once, and the shapes in which it runs."""

    num_slots: int
    num_pages: int
    page_size: int  # token positions
    max_model_len: int  # tokens of prompt and completion together
    max_prefill_tokens: int  # of prompts, in one step
    row_tokens: int = USUAL_ROW_TOKENS  # of a row of a prompt: a block of positions, of whole pages
    prefill_step_cost_tokens: int = 512  # the time to read all weights, in tokens of prefill
    skips_padding: bool = False  # whether products cost nothing for padding, so that few shapes suffice
    # Whether the host picks a sampling program by the options of a step; a CPU's branches as it runs, for free.
    # A GPU's branch copies its predicate to the host and waits for that.
    # Source: https://github.com/openxla/xla/blob/main/xla/backends/gpu/runtime/conditional_thunk.cc
    has_sampling_variants: bool = True
    has_whole_steps: bool = False  # whether a decode step is one program
    memory: MemoryShapes | None = None  # of a model that attends to an encoder
    media: RowShapes | None = None  # of a model that takes an encoder's rows for tokens
    adapters: AdapterShapes | None = None  # the slots of adapters; None without any
    windows: tuple[WindowShapes, ...] = ()  # of layers whose pages are apart
    states: StateShapes | None = None  # of a model whose layers keep states
    taps: tuple[int, ...] | None = None  # layers before which hidden states are kept, for a head that drafts of them
    num_drafts: int = 0  # the most tokens that are drafted for a sequence in a step; 0 if none ever are

    @property
    def facts(self) -> dict[str, Any]:
        """The sizes under the names that `/admin/stats` has for them."""
        sizes = asdict(self)
        del sizes["has_sampling_variants"], sizes["has_whole_steps"], sizes["skips_padding"]
        return {name: size for name, size in sizes.items() if size is not None} | {"kv_tokens": self.kv_tokens}

    @property
    def kv_tokens(self) -> dict[str, int]:
        """The token positions that the pages of each kind of layers hold."""
        apart = {f"window_{w.window}": w.num_pages * self.page_size for w in self.windows}
        return {"full": self.num_pages * self.page_size, **apart}

    @property
    def layout(self) -> CacheLayout:
        """How much cache a model lays out."""
        windows = tuple((w.window, w.num_pages) for w in self.windows)
        return CacheLayout(
            self.num_pages, self.page_size, windows, 0 if self.states is None else self.states.num_states
        )

    @property
    def max_pages(self) -> int:
        """The most pages of a sequence, which every step's page table has room for."""
        return self.pages_for(self.max_model_len)

    @property
    def memory_pages(self) -> int:
        """The pages of a sequence's memory; 0 of a model without one."""
        return 0 if self.memory is None else self.pages_for(self.memory.length)

    @property
    def encoder_parts(self) -> int:
        """In how many parts a medium is encoded; 0 of a model without an encoder."""
        encoded = self.memory or self.media
        return 0 if encoded is None else encoded.num_parts

    def pages_for(self, num_tokens: int) -> int:
        """Return the number of pages that hold a number of tokens."""
        return -(-num_tokens // self.page_size)

    @cached_property
    def row_counts(self) -> tuple[int, ...]:
        """How many rows of prompts a step may have room for."""
        rows_in_use = self.num_slots * -(-self.max_model_len // self.row_tokens)
        most = max(1, min(self.max_prefill_tokens // self.row_tokens, rows_in_use))
        if self.skips_padding or most == 1:
            return tuple(sorted({1, most}))
        # Halving at the top, where padding costs most, and quartering below.
        return (*geometric_sizes(1, max(most // 2, 1), factor=4), most)

    @property
    def fewest_rows(self) -> int:
        """How many rows of prompts a step must have room for, so that it can go on with any prompt."""
        if self.media is None or not self.media.is_whole:
            return 1
        of_medium = (self.media.place_rows + self.row_tokens - 2) // self.row_tokens + 1  # that it can touch
        return min(of_medium, -(-self.max_model_len // self.row_tokens))

    @cached_property
    def slot_counts(self) -> tuple[int, ...]:
        """How many slots a decode step may serve."""
        # A sequence that runs alone must not pay for a neighbour; from four on a step costs little more for twice as
        # many sequences.
        if self.num_slots <= 4 or self.skips_padding:
            return tuple(sorted({1, self.num_slots}))
        return (1, *geometric_sizes(4, self.num_slots, factor=2))

    @property
    def num_samples(self) -> int:
        """The most tokens that a step with rows samples: one of each slot, or those that verify drafts."""
        return max(self.num_slots, 1 + self.num_drafts) if self.num_drafts else self.num_slots

    @cached_property
    def sample_counts(self) -> tuple[int, ...]:
        """How many tokens a step may sample."""
        return tuple(sorted({*self.slot_counts, self.num_samples}))

    @cached_property
    def decode_buckets(self) -> tuple[Bucket, ...]:
        """Steps without prompts."""
        return tuple(Bucket(count, 0) for count in self.slot_counts)

    @cached_property
    def prompt_buckets(self) -> tuple[Bucket, ...]:
        """Steps with rows of prompts, beside which any slot may decode."""
        return tuple(Bucket(self.num_samples, count) for count in self.row_counts)

    @property
    def smallest_prompt_bucket(self) -> Bucket:
        """The smallest step that can go on with any prompt."""
        return min(bucket for bucket in self.prompt_buckets if bucket.num_rows >= self.fewest_rows)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """All buckets."""
        return (*self.prompt_buckets, *self.decode_buckets)

    @property
    def buckets_in_parts(self) -> tuple[Bucket, ...]:
        """The steps that run layer group by layer group: decode steps too, unless they are whole."""
        return self.prompt_buckets if self.has_whole_steps else self.buckets

    def padding(self, bucket: Bucket) -> int:
        """Return what a bucket computes, in tokens."""
        return bucket.num_seqs + bucket.num_rows * self.row_tokens

    def smallest(self, buckets: Iterable[Bucket], needed: Bucket) -> Bucket:
        """Return the bucket that holds the needed size along both dimensions with the least padding.

        Raises:
            ValueError: no bucket holds it, which is a fault of the caller's bounds.
        """
        fitting = [bucket for bucket in buckets if all(map(int.__ge__, bucket, needed))]
        if not fitting:
            raise ValueError(f"no bucket holds {needed}")
        return min(fitting, key=self.padding)


class AvailableSteps(NamedTuple):
    """The steps that run without waiting for an executable: all, or those that a start has compiled so far."""

    buckets: tuple[Bucket, ...]
    num_rows: int  # the most rows of prompts
    is_complete: bool


def available_steps(shapes: EngineShapes, compiled: Set[Bucket]) -> AvailableSteps:
    """Return the steps that a scheduler may plan with, given those that are compiled: at least `sufficient_buckets`."""
    buckets = tuple(bucket for bucket in shapes.buckets if bucket in compiled)
    return AvailableSteps(
        buckets,
        num_rows=max(bucket.num_rows for bucket in buckets),
        is_complete=compiled >= set(shapes.buckets),
    )


def sufficient_buckets(shapes: EngineShapes) -> list[Bucket]:
    """Return steps that serve all slots and sample with one program: one computes prompts by as few rows as can be.

    It also decodes, with an empty row. Where whole decode steps take long to compile, it is the only one.
    """
    prompts = shapes.smallest_prompt_bucket
    return [prompts] if shapes.has_whole_steps else [prompts, max(shapes.decode_buckets)]


def geometric_sizes(smallest: int, largest: int, *, factor: int) -> tuple[int, ...]:
    """Return sizes from `smallest`, each `factor` times the one before, and always `largest` as the last."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= factor
    return (*sizes, largest)
