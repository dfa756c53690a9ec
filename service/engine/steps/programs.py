"""Every program that a runner can be asked for: its name, its function and its shapes.

initial-slots, initial-cache-…  the device state; each part of a cache for each kind of stage
embed-…                         tokens to hidden states; one for each bucket
prefill-…, decode-…             the layers of a stage; one for each bucket and kind of stage
last-…                          the hidden states that a prefill draws from; one for each size of its step
sample-prefill-…, -decode-…     the draw that follows a step; one for each number of rows
score-prompt-…                  a prompt's log-probabilities, for who asks; one for each size of a prefill step
count-tokens                    for who has penalties
save-…, restore-…               between rows and pages, where the kernel keeps rows; one for each size of a copy
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from service.compile.buckets import Bucket, bucket_name
from service.compile.program import Program
from service.engine.schedule.plan import CopyKind, StepKind
from service.engine.shapes import EngineShapes
from service.engine.steps.batch import (
    Drawing,
    LastInputs,
    all_allowed,
    empty_copy,
    empty_count,
    empty_inputs,
    empty_prompt_inputs,
    empty_sample_inputs,
)
from service.engine.steps.sharding import placed, placement_of
from service.engine.steps.step import (
    SlotState,
    count_step,
    embed_tokens,
    initial_slots,
    last_hidden,
    restore_pages,
    run_stage,
    sample_step,
    save_pages,
    score_prompt,
)
from service.kernels.attention import num_cache_parts
from service.models.interface import Cache, PagedDecoder, Stage, StageInputs

INITIAL_SLOTS = "initial-slots"
COUNT_TOKENS = "count-tokens"


def initial_cache_name(stage: Stage, part: int) -> str:
    """Name what makes a part of a stage's empty cache."""
    return f"initial-cache-{stage.kind}-part{part}"


def embed_name(kind: StepKind, bucket: Bucket) -> str:
    """Name what begins a step of a bucket."""
    return f"embed-{bucket_name(kind, bucket)}"


def stage_name(kind: StepKind, bucket: Bucket, stage: Stage) -> str:
    """Name a stage of a step."""
    return f"{bucket_name(kind, bucket)}-{stage.kind}"


def last_name(num_seqs: int, num_tokens: int) -> str:
    """Name what ends a prefill step of this size."""
    return f"last-seqs{num_seqs}-tokens{num_tokens}"


def sample_name(kind: StepKind, num_seqs: int) -> str:
    """Name the draw after a step of so many rows."""
    return f"sample-{kind}-seqs{num_seqs}"


def score_name(num_seqs: int, num_tokens: int) -> str:
    """Name the scoring of prompts after a prefill step of this size."""
    return f"score-prompt-seqs{num_seqs}-tokens{num_tokens}"


def copy_name(kind: CopyKind, num_pages: int, stage: Stage) -> str:
    """Name a copy of so many pages of a stage."""
    return f"{kind}-pages{num_pages}-{stage.kind}"


def distinct(stages: Sequence[Stage]) -> list[Stage]:
    """Return the first stage of each kind: executables are made for those alone."""
    return list({stage.kind: stage for stage in reversed(stages)}.values())[::-1]


def first_names(shapes: EngineShapes, stages: Sequence[Stage]) -> list[str]:
    """Name what the first token of a short request needs."""
    kinds = distinct(stages)
    caches = [initial_cache_name(stage, 0) for stage in kinds]
    return [INITIAL_SLOTS, *caches, *step_names(StepKind.PREFILL, next(iter(shapes.prefill_grid)), kinds)]


def program_names(shapes: EngineShapes, stages: Sequence[Stage], *, keeps_rows: bool) -> list[str]:
    """Name all that a runner can be asked for, in about the order in which requests will need them."""
    kinds = distinct(stages)
    short_first = sorted(shapes.buckets, key=lambda kind_and_bucket: kind_and_bucket[1]["num_pages"])
    steps = [name for kind, bucket in short_first for name in step_names(kind, bucket, kinds)]
    copies = [copy_name(kind, size, stage) for kind in CopyKind for size in shapes.copy_sizes for stage in kinds]
    scores = [score_name(*size) for size in shapes.sizes(StepKind.PREFILL)]
    num_parts = num_cache_parts(shapes.layout, keeps_rows=keeps_rows)
    caches = [initial_cache_name(stage, part) for part in range(num_parts) for stage in kinds]
    decode = step_names(StepKind.DECODE, next(iter(shapes.decode_grid)), kinds)
    rest = [*decode, *caches, *steps, COUNT_TOKENS, *(copies if keeps_rows else ()), *scores]
    return list(dict.fromkeys([*first_names(shapes, stages), *rest]))


def engine_programs(
    model: PagedDecoder, shapes: EngineShapes, weight_shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> list[Program]:
    """Return all that a runner of these shapes can be asked for."""
    programs = _EnginePrograms(model, shapes, weight_shapes)
    return [*programs.initial(), *programs.steps(), *programs.draws(), *programs.stages()]


class _EnginePrograms:
    def __init__(
        self, model: PagedDecoder, shapes: EngineShapes, weight_shapes: Mapping[str, jax.ShapeDtypeStruct]
    ) -> None:
        self._model, self._shapes, self._weights = model, shapes, weight_shapes
        self._place = placement_of(model)
        self._make_slots = functools.partial(initial_slots, model.vocab_size, shapes)
        self._slots = placed(jax.eval_shape(self._make_slots), self._place.whole)

    def initial(self) -> list[Program]:
        """What makes the device state."""
        caches = [
            self._beginning(
                initial_cache_name(stage, part), functools.partial(self._make_cache, stage, part), self._place.cache
            )
            for stage in distinct(self._model.stages)
            for part in range(len(self._cache_shapes(stage)))
        ]
        return [self._beginning(INITIAL_SLOTS, self._make_slots, self._place.whole), *caches]

    def steps(self) -> list[Program]:
        """What comes before the first stage of a step, and after the last."""
        embeds = [
            self._of_slots(
                embed_name(kind, bucket),
                functools.partial(embed_tokens, self._model, kind, bucket=bucket),
                empty_inputs(bucket, self._shapes).packed,
            )
            for kind, bucket in self._shapes.buckets
        ]
        lasts = [
            self._of_slots(last_name(*size), last_hidden, LastInputs(self._hidden(*size), _int32(size[0])))
            for size in self._shapes.sizes(StepKind.PREFILL)
        ]
        return [*embeds, *lasts]

    def draws(self) -> list[Program]:
        """What turns hidden states into tokens and log-probabilities."""
        draws = [
            self._of_slots(
                sample_name(kind, num_seqs),
                functools.partial(sample_step, self._model, kind),
                empty_sample_inputs(
                    kind,
                    self._hidden(num_seqs, 1),
                    Drawing(_int32(num_seqs), _int32(num_seqs)),
                    all_allowed(num_seqs, self._model.vocab_size),
                ),
            )
            for kind in StepKind
            for num_seqs in self._shapes.row_sizes(kind)
        ]
        scores = [
            self._of_slots(
                score_name(*size),
                functools.partial(score_prompt, self._model),
                empty_prompt_inputs(self._hidden(*size)),
            )
            for size in self._shapes.sizes(StepKind.PREFILL)
        ]
        return [*draws, *scores, self._of_slots(COUNT_TOKENS, count_step, empty_count(self._shapes))]

    def stages(self) -> list[Program]:
        """What runs layers, and what copies their cache."""
        return [program for stage in distinct(self._model.stages) for program in self._of_stage(stage)]

    def _of_stage(self, stage: Stage) -> list[Program]:
        weights = [self._weights[name] for name in stage.weights]
        cache = placed(self._cache_shapes(stage), self._place.cache)
        layers = [
            self._program(
                stage_name(kind, bucket, stage),
                functools.partial(run_stage, self._model, stage),
                (weights, cache, self._stage_inputs(bucket)),
            )
            for kind, bucket in self._shapes.buckets
        ]
        copies = [
            self._program(
                copy_name(kind, size, stage),
                functools.partial(function, self._model),
                ((), cache, empty_copy(size, self._shapes)),
            )
            for kind, function in ((CopyKind.SAVE, save_pages), (CopyKind.RESTORE, restore_pages))
            for size in self._shapes.copy_sizes
            if self._model.keeps_rows
        ]
        return [*layers, *copies]

    def _make_cache(self, stage: Stage, part: int) -> Any:
        return self._model.initial_cache(self._shapes.layout, stage)[part]

    def _cache_shapes(self, stage: Stage) -> Cache:
        return jax.eval_shape(functools.partial(self._model.initial_cache, self._shapes.layout, stage))

    def _stage_inputs(self, bucket: Bucket) -> StageInputs:
        """Return what a stage is handed: a matter of the model, so it is asked."""
        tokens = _int32(bucket["num_seqs"], bucket["num_tokens"])
        hidden, rotation = jax.eval_shape(self._model.embed, self._weights, tokens, tokens)
        return StageInputs(hidden, rotation, empty_inputs(bucket, self._shapes).paging)

    def _hidden(self, *rows: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*rows, self._model.hidden_size), self._model.dtype)

    def _of_slots(self, name: str, function: Callable[..., tuple[SlotState, Any]], inputs: Any) -> Program:
        return self._program(name, function, (self._weights, self._slots, inputs))

    def _program(self, name: str, function: Callable[..., tuple[Any, Any]], arguments: tuple[Any, Any, Any]) -> Program:
        constants, state, inputs = arguments
        shaped = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), inputs)
        return Program(name, function, constants, state, shaped, self._place.whole, self._place.whole)

    def _beginning(self, name: str, make: Callable[[], Any], where: Any) -> Program:
        def begin(_: Any, none: Any, __: Any) -> tuple[Any, Any]:
            return none, make()

        return Program(name, begin, outputs_sharding=where)


def step_names(kind: StepKind, bucket: Bucket, stages: Sequence[Stage]) -> list[str]:
    """Name what a step of a bucket runs, in that order."""
    size = bucket["num_seqs"], bucket["num_tokens"]
    return [
        embed_name(kind, bucket),
        *(stage_name(kind, bucket, stage) for stage in stages),
        *([last_name(*size)] if kind is StepKind.PREFILL else []),
        sample_name(kind, bucket["num_seqs"]),
    ]


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)
