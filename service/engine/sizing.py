"""The number of pages and the context, from the configuration and the device's memory, before weights are read.

Plain numbers, so that a warm start needs no model and traces nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from service.engine.shapes import (
    USUAL_ROW_TOKENS,
    EngineShapes,
    MemoryShapes,
    RowShapes,
    StateShapes,
    WindowShapes,
    step_pages,
    window_pages,
)
from service.errors import DoesNotFit, SettingsError
from service.models.adapter_arrays import AdapterShapes

# A shorter context is useless; the start fails instead.
SMALLEST_CONTEXT = 256  # tokens
HOST_STEP_COST_TOKENS = 40  # on a CPU; see `EngineShapes.prefill_step_cost_tokens`
# The number of pages is rounded down to this many significant bits, in increments of 3 to 6 %. So two machines of one
# kind whose free memory differs a little get the same shapes, and so the same executables.
COUNT_BITS = 5
# Small pages waste least at a sequence's end and share most of a prefix; larger ones make page tables shorter.
PAGE_SIZES = (16, 32, 64, 128, 256)  # token positions
TABLE_ENTRY_BYTES = 4
# Every kernel divides the positions of a table into parts whose length this is a multiple of.
TABLE_ALIGN = 512  # positions
USUAL_CONTEXT = 8192  # tokens of a sequence, of which as many fit as there are pages of windows for
STATES_PER_SLOT = 2  # of layers that keep states, for each sequence that runs
SNAPSHOT_PART = 8  # the states that long prompts leave findable take one part in this number beside the pages
WINDOWS_PER_SLOT = 2  # at least: one of a sequence that runs, and one of a sequence that may be found again


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that decide how much fits on each device: totals on one, each one's share on several."""

    context_len: int  # the model's longest sequence, in tokens
    vocab_size: int
    weights_bytes: int
    kv_bytes_per_token: int  # keys and values of one token position, all layers but those of the windows
    is_host: bool = False  # whether the device is the host's CPU
    skips_padding: bool = False  # whether products cost nothing for padding
    has_whole_steps: bool = False  # whether a decode step is one program
    max_table_bytes: int | None = None  # of the page table of a step that the kernel takes; None for any
    page_sizes: tuple[int, ...] | None = None  # in token positions, that the kernel takes; None for any
    max_positions: int | None = None  # of all pages, that the kernel can address; None for any
    memory: MemoryShapes | None = None  # of a model that attends to an encoder
    media: RowShapes | None = None  # of a model that takes an encoder's rows for tokens
    media_bytes: int = 0  # of these rows
    adapters: AdapterShapes | None = None  # whose slots are part of the weights
    window_bytes_per_token: tuple[tuple[int, int], ...] = ()  # of the layers with each sliding window, of one position
    state_bytes: int = 0  # of the states of one sequence, of layers that keep some


def fit_engine(
    model: ModelSize,
    *,
    memory_bytes: int,
    max_num_seqs: int,
    page_size: int | None,
    max_prefill_tokens: int,
    max_model_len: int | None,
    num_drafts: int = 0,
) -> EngineShapes:
    """Choose the engine's sizes.

    Args:
        model: the model's sizes.
        memory_bytes: for weights, pages and work space together on each device.
        max_num_seqs: slots.
        page_size: token positions of a page; None for the smallest with which the kernel takes the page tables.
        max_prefill_tokens: of prompts, in one step.
        max_model_len: the context that the operator requests; None for the model's own, or as much as fits.
        num_drafts: the most tokens that are drafted for a sequence; 0 if none ever are.

    Raises:
        SettingsError: the operator requests more context than the model has, more page tables or another size of
            pages than the kernel takes, or steps that hold no image of a model whose images are computed whole.
        DoesNotFit: the weights and one sequence's pages exceed the memory.
    """
    if max_model_len is not None and max_model_len > model.context_len:
        raise SettingsError(
            "MAX_MODEL_LEN", f"is {max_model_len} tokens; the model was made for {model.context_len} at most."
        )
    if page_size is not None and page_size not in (model.page_sizes or (page_size,)):
        taken = " or ".join(map(str, model.page_sizes or ()))
        raise SettingsError(
            "PAGE_SIZE", f"is {page_size}, and attention over this KV_DTYPE takes {taken} on this device."
        )
    table_bytes, num_tables = 0, 0
    for size in model.page_sizes or PAGE_SIZES if page_size is None else (page_size,):
        shapes = _fit_pages(
            model,
            memory_bytes=memory_bytes,
            max_num_seqs=max_num_seqs,
            page_size=size,
            max_prefill_tokens=max_prefill_tokens,
            max_model_len=max_model_len,
            num_drafts=num_drafts,
        )
        if shapes.row_counts[-1] < shapes.fewest_rows:
            raise SettingsError(
                "MAX_PREFILL_TOKENS",
                f"is {max_prefill_tokens}, and this model computes all tokens of an image in one step: set it to "
                f"{shapes.fewest_rows * shapes.row_tokens} or more.",
            )
        num_tables = max(max_num_seqs, shapes.row_counts[-1])  # each row of a prompt has one, too
        table_bytes = TABLE_ENTRY_BYTES * num_tables * shapes.pages_for(shapes.max_model_len)
        if model.max_table_bytes is None or table_bytes <= model.max_table_bytes:
            return shapes
    remedy = "Set it or MAX_MODEL_LEN lower" + ("." if page_size is None else ", or PAGE_SIZE higher.")
    name, value, of = (
        ("MAX_NUM_SEQS", max_num_seqs, "sequences")
        if num_tables == max_num_seqs
        else ("MAX_PREFILL_TOKENS", max_prefill_tokens, "rows of prompts")
    )
    tables = f"the page tables of {num_tables} {of} take {table_bytes:,} bytes"
    fits = f"the device's attention kernel holds {model.max_table_bytes:,}"
    raise SettingsError(name, f"is {value}: {tables}, and {fits}. {remedy}")


def engine_bytes(model: ModelSize, shapes: EngineShapes) -> int:
    """Return what an engine of these sizes takes on each device: weights, pages and work space."""
    apart = {w.window: w.num_pages for w in shapes.windows}
    pages_bytes = shapes.page_size * (
        shapes.num_pages * model.kv_bytes_per_token
        + sum(apart.get(window, shapes.num_pages) * size for window, size in model.window_bytes_per_token)
    )
    work_bytes = _work_bytes(model.vocab_size, shapes.num_samples, shapes.max_prefill_tokens)
    states_bytes = 0 if shapes.states is None else shapes.states.num_states * model.state_bytes
    return model.weights_bytes + model.media_bytes + pages_bytes + states_bytes + work_bytes


def _fit_pages(
    model: ModelSize,
    *,
    memory_bytes: int,
    max_num_seqs: int,
    page_size: int,
    max_prefill_tokens: int,
    max_model_len: int | None,
    num_drafts: int,
) -> EngineShapes:
    context = max_model_len or model.context_len
    row_tokens = _row_tokens(page_size, max_prefill_tokens)
    step_tokens = max(max_prefill_tokens, row_tokens)
    # Beyond a few pages, a sequence holds less of a window's pages than of the others.
    apart = [(w, b) for w, b in model.window_bytes_per_token if w + step_tokens + 2 * page_size < context]
    page_bytes = page_size * (
        model.kv_bytes_per_token + sum(b for w, b in model.window_bytes_per_token if (w, b) not in apart)
    )
    num_samples = max(max_num_seqs, 1 + num_drafts) if num_drafts else max_num_seqs
    work_bytes = _work_bytes(model.vocab_size, num_samples, max_prefill_tokens)
    free_bytes = memory_bytes - model.weights_bytes - model.media_bytes - work_bytes
    usual_bytes = page_bytes * math.ceil(min(context, USUAL_CONTEXT) / page_size)  # of a sequence
    # As many as there are sequences in the most pages of the others that are ever used.
    most_windows = max_num_seqs * max(WINDOWS_PER_SLOT, math.ceil(context / USUAL_CONTEXT))
    num_windows = min(_fitting_windows(apart, free_bytes, usual_bytes, page_size, step_tokens), most_windows)
    most_pages = max_num_seqs * math.ceil(context / page_size)
    if model.max_positions is not None:
        most_pages = min(most_pages, model.max_positions // page_size)
    pages_apart = [min(_pages_apart(w, num_windows, page_size, step_tokens), most_pages) for w, _ in apart]
    bytes_apart = sum(page_size * b * n for (_, b), n in zip(apart, pages_apart, strict=True))
    states = STATES_PER_SLOT * _num_running(model, free_bytes - bytes_apart, usual_bytes, max_num_seqs)
    interval = _state_interval(model, row_tokens)
    bytes_apart += states * model.state_bytes
    whole_bytes = page_bytes + math.ceil(page_size * model.state_bytes / interval)  # of a page, and of snapshots in it
    num_pages = max(free_bytes - bytes_apart, 0) // whole_bytes if whole_bytes else most_pages
    if model.max_positions is not None:
        num_pages = min(num_pages, model.max_positions // page_size)
    shortest = min(context if max_model_len else SMALLEST_CONTEXT, context)
    memory_pages = 0 if model.memory is None else math.ceil(model.memory.length / page_size)  # of a sequence
    fewest_pages = math.ceil(shortest / page_size) + memory_pages
    if num_pages < fewest_pages:
        raise DoesNotFit(
            needed_bytes=memory_bytes - free_bytes + bytes_apart + fewest_pages * whole_bytes,
            available_bytes=memory_bytes,
            remedy="Set MAX_MODEL_LEN or MAX_NUM_SEQS lower, DTYPE to bfloat16, or take more or larger devices.",
        )
    num_pages = max(_round_down(num_pages), fewest_pages)
    context = min(context, (num_pages - memory_pages) * page_size)
    ahead = model.media.place_rows if model.media is not None and model.media.is_whole else 0
    pages_in_use = max_num_seqs * (math.ceil(context / page_size) + memory_pages)  # more pages would never be used
    num_pages = min(num_pages, pages_in_use)
    return EngineShapes(
        num_slots=max_num_seqs,
        num_pages=num_pages,
        page_size=page_size,
        max_model_len=context,
        max_prefill_tokens=max_prefill_tokens,
        row_tokens=row_tokens,
        skips_padding=model.skips_padding,
        has_sampling_variants=not model.is_host,
        has_whole_steps=model.has_whole_steps and model.memory is None and not (model.media and model.media.has_grid),
        memory=model.memory,
        media=model.media,
        adapters=model.adapters,
        windows=tuple(
            WindowShapes(w, n, _table_pages(w, row_tokens, ahead, page_size, context), TABLE_ALIGN)
            for (w, _), n in zip(apart, pages_apart, strict=True)
        ),
        states=StateShapes(states + num_pages * page_size // interval, interval) if states else None,
        num_drafts=num_drafts,
        taps=None,
        **({"prefill_step_cost_tokens": HOST_STEP_COST_TOKENS} if model.is_host else {}),
    )


def _num_running(model: ModelSize, free_bytes: int, usual_bytes: int, max_num_seqs: int) -> int:
    """Return for how many sequences there are slots of states: as many as fit with all their pages; others wait.

    Each has a slot for its state, and one for that of the prefix that it was found at or will be.
    """
    if model.state_bytes == 0:
        return 0
    return max(1, min(free_bytes // (usual_bytes + STATES_PER_SLOT * model.state_bytes), max_num_seqs))


def sequences_with_states(shapes: EngineShapes) -> int:
    """Return how many sequences can run at the same time, of a model whose layers keep states."""
    assert shapes.states is not None, "asked of a model whose layers keep states"
    snapshots = shapes.num_pages * shapes.page_size // shapes.states.interval
    return min((shapes.states.num_states - snapshots) // STATES_PER_SLOT, shapes.num_slots)


def _state_interval(model: ModelSize, row_tokens: int) -> int:
    """Return after how many positions of a long prompt its state is kept: it takes a part of the pages' bytes."""
    kv_bytes = model.kv_bytes_per_token + sum(size for _, size in model.window_bytes_per_token)
    return row_tokens * max(1, math.ceil(SNAPSHOT_PART * model.state_bytes / max(kv_bytes * row_tokens, 1)))


def _fitting_windows(
    apart: Sequence[tuple[int, int]], free_bytes: int, usual_bytes: int, page_size: int, step_tokens: int
) -> int:
    """Return for how many sequences there are pages of windows: as many as fit with all their other pages.

    Those that wait to be found again have some, too.
    """
    if not apart:
        return 0
    of_step = sum(page_size * b * step_pages(step_tokens, page_size) for _, b in apart)
    of_window = sum(page_size * b * window_pages(w, page_size) for w, b in apart)
    return max(1, _round_down(max(free_bytes - of_step, 0) // (usual_bytes + of_window)))


def _pages_apart(window: int, num_windows: int, page_size: int, step_tokens: int) -> int:
    """Return the pages of a window: a step computes a prompt's tokens before those behind the window are given up."""
    return num_windows * window_pages(window, page_size) + step_pages(step_tokens, page_size)


def _table_pages(window: int, row_tokens: int, ahead: int, page_size: int, context: int) -> int:
    """Return the most pages in which the tokens of a row, and what they see, lie, from where a table begins."""
    return min(math.ceil((window + TABLE_ALIGN + row_tokens + ahead) / page_size), math.ceil(context / page_size))


def _row_tokens(page_size: int, max_prefill_tokens: int) -> int:
    """Return the length of a row of a prompt: whole pages, as near to the usual length as they come."""
    return page_size * max(1, min(USUAL_ROW_TOKENS, max_prefill_tokens) // page_size)


def _round_down(count: int) -> int:
    dropped_bits = max(count.bit_length() - COUNT_BITS, 0)
    return count >> dropped_bits << dropped_bits


def _work_bytes(vocab_size: int, max_num_seqs: int, max_prefill_tokens: int) -> int:
    return (
        4  # float32
        * vocab_size
        * max_num_seqs  # logits of a decode step, or of as many positions of a prompt
        * 5  # the logits, the arrays that sampling derives from them, and the counts of tokens
    ) + (
        64
        * 1024  # activations of one token, an upper bound: 16 arrays of 1024 float32
        * (max_prefill_tokens + max_num_seqs)
    )
