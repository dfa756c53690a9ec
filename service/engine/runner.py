"""Holds weights, device state and executables; dispatches steps without waiting for them."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from service.compile.aot import Program
from service.compile.buckets import Bucket, bucket_name
from service.engine.batch import all_allowed, choose_bucket, empty_inputs, pack, pack_copy, row_indices
from service.engine.logprobs import unpack_logprobs
from service.engine.plan import CopyKind, PageCopy, Plan, PlannedRow, StepKind
from service.engine.request import StepLogprobs, TokenLogprobs
from service.engine.sampler import count_tokens
from service.engine.shapes import EngineShapes
from service.engine.step import (
    DeviceState,
    StepOutputs,
    copy_shapes,
    initial_state,
    input_shapes,
    restore_pages,
    run_step,
    save_pages,
)
from service.models.interface import PagedDecoder, Weights


class StepResult(NamedTuple):
    """A step that may still be under way."""

    outputs: StepOutputs
    plan: Plan
    indices: list[int]  # where each row of the plan lies

    def read(self) -> Int[np.ndarray, " seq"]:
        """Wait for the step and return one token per row; -1 for one whose scores are no numbers."""
        return np.asarray(self.outputs.sampled.token_ids)[self.indices]

    def read_logprobs(self) -> StepLogprobs | None:
        """Return the log-probabilities that were asked for; without any, nothing is copied from the device."""
        requests = [row.sequence.request for row in self.plan.rows]
        if all(r.sampling.num_logprobs is None and r.num_prompt_logprobs is None for r in requests):
            return None
        packed = np.asarray(self.outputs.sampled.logprobs)
        nums = [r.sampling.num_logprobs for r in requests]
        return StepLogprobs(
            tokens=tuple(
                None if num is None else unpack_logprobs(packed[index], num)
                for index, num in zip(self.indices, nums, strict=True)
            ),
            prompts=tuple(self._prompt_logprobs(i, row) for i, row in zip(self.indices, self.plan.rows, strict=True)),
        )

    def _prompt_logprobs(self, index: int, row: PlannedRow) -> tuple[TokenLogprobs, ...]:
        request = row.sequence.request
        if request.num_prompt_logprobs is None or self.outputs.prompt_logprobs is None:
            return ()
        packed = np.asarray(self.outputs.prompt_logprobs)[index]
        num_targets = min(len(row.token_ids), len(request.prompt_ids) - 1 - row.start)
        return tuple(unpack_logprobs(packed[i], request.num_prompt_logprobs) for i in range(num_targets))


INITIAL_STATE = "initial-state"
COUNT_TOKENS = "count-tokens"


def program_names(shapes: EngineShapes, *, keeps_rows: bool) -> list[str]:
    """Name all that a runner can be asked for, what the first short request needs at the front."""
    prefills = [bucket_name(StepKind.PREFILL, bucket) for bucket in shapes.prefill_grid]
    decodes = [bucket_name(StepKind.DECODE, bucket) for bucket in shapes.decode_grid]
    copies = [_copy_name(kind, size) for kind in CopyKind for size in shapes.copy_sizes] if keeps_rows else []
    return [INITIAL_STATE, prefills[0], decodes[0], COUNT_TOKENS, *copies, *prefills[1:], *decodes[1:]]


def engine_programs(
    model: PagedDecoder, shapes: EngineShapes, weight_shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> list[Program]:
    """Return all that a runner of these shapes can be asked for."""
    make_state = functools.partial(initial_state, model, shapes)
    state_shapes = jax.eval_shape(make_state)
    return [
        Program(INITIAL_STATE, make_state, shapes=()),
        Program(COUNT_TOKENS, count_tokens, (state_shapes.token_counts, *_count_shapes(shapes)), donated=(0,)),
        *(
            Program(
                name=bucket_name(kind, bucket),
                function=functools.partial(run_step, model, kind),
                shapes=(weight_shapes, state_shapes, input_shapes(kind, bucket, shapes, model.vocab_size)),
                donated=(1,),
            )
            for kind, bucket in _all_buckets(shapes)
        ),
        *(_copy_programs(model, shapes, state_shapes) if model.keeps_rows else ()),
    ]


class Runner:
    """Runs plans on the device, in the order in which they are dispatched."""

    def __init__(self, shapes: EngineShapes, weights: Weights, executables: Mapping[str, jax.stages.Compiled]) -> None:
        self.shapes = shapes
        self._weights = weights
        self._executables = executables
        self._keeps_rows = _copy_name(CopyKind.SAVE, shapes.copy_sizes[0]) in executables
        self._state: DeviceState = executables[INITIAL_STATE]()
        vocab_size = self._state.token_counts.shape[1]
        # On the device already, so that a step without a restriction carries no words.
        self._all_allowed = {
            num_seqs: jax.device_put(all_allowed(num_seqs, vocab_size))
            for num_seqs in {bucket["num_seqs"] for _, bucket in _all_buckets(shapes)}
        }

    def dispatch(self, plan: Plan) -> StepResult:
        """Start a plan's step and return at once."""
        bucket = choose_bucket(plan, self.shapes)
        executable = self._executables[bucket_name(plan.kind, bucket)]
        for row in plan.rows:
            if plan.kind is StepKind.PREFILL and row.is_sampled and row.sequence.request.sampling.has_penalties:
                self._count_tokens(row)
        inputs = pack(plan, bucket, self.shapes, self._all_allowed[bucket["num_seqs"]])
        self._state, outputs = executable(self._weights, self._state, inputs)
        return StepResult(outputs, plan, row_indices(plan))

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Start copies between slots' rows and pages; a kernel that reads pages in place needs none."""
        if self._keeps_rows:
            for copy in copies:
                for inputs in pack_copy(copy, self.shapes):
                    self._state = self._executables[_copy_name(copy.kind, len(inputs.pages))](self._state, inputs)

    def warm(self) -> None:
        """Run every executable once on padding, and wait; the first call of one loads it onto the device."""
        for kind, bucket in _all_buckets(self.shapes):
            executable = self._executables[bucket_name(kind, bucket)]
            inputs = empty_inputs(kind, bucket, self.shapes, self._all_allowed[bucket["num_seqs"]])
            self._state, outputs = executable(self._weights, self._state, inputs)
            jax.block_until_ready(outputs)
        self._dispatch_count(self.shapes.num_slots, (), prompt_len=0)
        self.copy_pages(
            [
                PageCopy(kind, 0, 0, (self.shapes.num_pages,) * size)
                for kind in CopyKind
                for size in self.shapes.copy_sizes
            ]
        )

    def _count_tokens(self, row: PlannedRow) -> None:
        """Count a sequence's tokens anew just before it draws its first one in this slot.

        So the counts are right whoever had the slot before, however the prompt was cut into chunks, and whatever part
        of it was found in a cache or had come out of the sequence before it lost its slot.
        """
        token_ids = row.sequence.known_ids[: row.start + row.num_tokens]
        self._dispatch_count(row.slot, token_ids, prompt_len=row.sequence.prompt_len)

    def _dispatch_count(self, slot: int, token_ids: tuple[int, ...], *, prompt_len: int) -> None:
        padded = np.zeros(self.shapes.max_context, np.int32)
        padded[: len(token_ids)] = token_ids
        numbers = (np.int32(slot), padded, np.int32(prompt_len), np.int32(len(token_ids)))
        counts = self._executables[COUNT_TOKENS](self._state.token_counts, *numbers)
        self._state = self._state._replace(token_counts=counts)


def _count_shapes(shapes: EngineShapes) -> tuple[jax.ShapeDtypeStruct, ...]:
    number = jax.ShapeDtypeStruct((), np.int32)
    return (number, jax.ShapeDtypeStruct((shapes.max_context,), np.int32), number, number)


def _copy_programs(model: PagedDecoder, shapes: EngineShapes, state_shapes: DeviceState) -> list[Program]:
    functions = {CopyKind.SAVE: save_pages, CopyKind.RESTORE: restore_pages}
    return [
        Program(
            name=_copy_name(kind, size),
            function=functools.partial(function, model),
            shapes=(state_shapes, copy_shapes(size)),
            donated=(0,),
        )
        for kind, function in functions.items()
        for size in shapes.copy_sizes
    ]


def _copy_name(kind: CopyKind, num_pages: int) -> str:
    return f"{kind}-pages{num_pages}"


def _all_buckets(shapes: EngineShapes) -> list[tuple[StepKind, Bucket]]:
    grids = {StepKind.PREFILL: shapes.prefill_grid, StepKind.DECODE: shapes.decode_grid}
    return [(kind, bucket) for kind, grid in grids.items() for bucket in grid]
