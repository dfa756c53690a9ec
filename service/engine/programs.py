"""Every program that a runner can be asked for: its name, its function and its shapes.

initial-state
prefill-…, decode-…             a step of the model up to its hidden states; one for each bucket
sample-prefill-…, -decode-…     the draw that follows a step; one for each number of rows
score-prompt-…                  a prompt's log-probabilities, for who asks; one for each size of a prefill step
count-tokens                    for who has penalties
save-…, restore-…               between rows and pages, where the kernel keeps rows; one for each size of a copy
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from service.compile.buckets import bucket_name
from service.compile.executable import Program
from service.engine.batch import (
    all_allowed,
    empty_copy,
    empty_count,
    empty_inputs,
    empty_prompt_inputs,
    empty_sample_inputs,
)
from service.engine.placement import placed, placement_of
from service.engine.plan import CopyKind, StepKind
from service.engine.shapes import EngineShapes
from service.engine.step import (
    DeviceState,
    count_step,
    initial_state,
    restore_pages,
    run_model,
    sample_step,
    save_pages,
    score_prompt,
)
from service.models.interface import PagedDecoder

INITIAL_STATE = "initial-state"
COUNT_TOKENS = "count-tokens"


def sample_name(kind: StepKind, num_seqs: int) -> str:
    """Name the draw after a step of so many rows."""
    return f"sample-{kind}-seqs{num_seqs}"


def score_name(num_seqs: int, num_tokens: int) -> str:
    """Name the scoring of prompts after a prefill step of this size."""
    return f"score-prompt-seqs{num_seqs}-tokens{num_tokens}"


def copy_name(kind: CopyKind, num_pages: int) -> str:
    """Name a copy of so many pages."""
    return f"{kind}-pages{num_pages}"


def program_names(shapes: EngineShapes, *, keeps_rows: bool) -> list[str]:
    """Name all that a runner can be asked for, what the first short request needs at the front."""
    steps = {kind: [bucket_name(kind, bucket) for bucket in grid] for kind, grid in shapes.grids.items()}
    draws = {kind: [sample_name(kind, num_seqs) for num_seqs in shapes.row_sizes(kind)] for kind in shapes.grids}
    first = [names.pop(0) for names in (*steps.values(), *draws.values())]
    copies = [copy_name(kind, size) for kind in CopyKind for size in shapes.copy_sizes] if keeps_rows else []
    rest = [name for names in (*steps.values(), *draws.values()) for name in names]
    scores = [score_name(*size) for size in shapes.prefill_sizes]
    return [INITIAL_STATE, *first, COUNT_TOKENS, *copies, *rest, *scores]


def engine_programs(
    model: PagedDecoder, shapes: EngineShapes, weight_shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> list[Program]:
    """Return all that a runner of these shapes can be asked for."""
    make_state = functools.partial(initial_state, model, shapes)
    place = placement_of(model)
    state_shapes = placed(jax.eval_shape(make_state), place.state)

    def first_state(_: Any, none: Any, __: Any) -> tuple[Any, DeviceState]:
        return none, make_state()

    def program(name: str, function: Callable[..., tuple[DeviceState, Any]], inputs: Any) -> Program:
        shaped = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), inputs)
        return Program(name, function, weight_shapes, state_shapes, shaped, place.whole, place.whole)

    def hidden(*rows: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*rows, model.hidden_size), model.dtype)

    steps = [
        program(bucket_name(kind, bucket), functools.partial(run_model, model, kind), empty_inputs(bucket, shapes))
        for kind, bucket in shapes.buckets
    ]
    draws = [
        program(
            sample_name(kind, num_seqs),
            functools.partial(sample_step, model, kind),
            empty_sample_inputs(kind, hidden(num_seqs), shapes, all_allowed(num_seqs, model.vocab_size)),
        )
        for kind in shapes.grids
        for num_seqs in shapes.row_sizes(kind)
    ]
    scores = [
        program(score_name(*size), functools.partial(score_prompt, model), empty_prompt_inputs(hidden(*size)))
        for size in shapes.prefill_sizes
    ]
    copies = [
        program(copy_name(kind, size), functools.partial(function, model), empty_copy(size, shapes))
        for kind, function in ((CopyKind.SAVE, save_pages), (CopyKind.RESTORE, restore_pages))
        for size in shapes.copy_sizes
        if model.keeps_rows
    ]
    counting = program(COUNT_TOKENS, count_step, empty_count(shapes))
    beginning = Program(INITIAL_STATE, first_state, outputs_sharding=place.state)
    return [beginning, counting, *steps, *draws, *scores, *copies]
