"""Holds weights, device state and executables; dispatches steps without waiting for them."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from service.compile.aot import Program
from service.compile.buckets import Bucket, bucket_name
from service.engine.batch import CopyInputs, choose_bucket, empty_inputs, pack, pack_copy, row_indices
from service.engine.plan import CopyKind, PageCopy, Plan, StepKind
from service.engine.shapes import EngineShapes
from service.engine.step import DeviceState, initial_state, input_shapes, restore_pages, run_step, save_pages
from service.models.interface import PagedDecoder, Weights


class StepResult(NamedTuple):
    """A step that may still be under way."""

    token_ids: jax.Array  # [seq], padded to the bucket
    indices: list[int]  # where each row of the plan lies

    def read(self) -> Int[np.ndarray, " seq"]:
        """Wait for the step and return one token per row."""
        return np.asarray(self.token_ids)[self.indices]


INITIAL_STATE = "initial-state"


def engine_programs(
    model: PagedDecoder, shapes: EngineShapes, weight_shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> list[Program]:
    """Return all that a runner of these shapes can be asked for."""
    make_state = functools.partial(initial_state, model, shapes)
    state_shapes = jax.eval_shape(make_state)
    return [
        Program(INITIAL_STATE, make_state, shapes=()),
        *(
            Program(
                name=bucket_name(kind, bucket),
                function=functools.partial(run_step, model, kind),
                shapes=(weight_shapes, state_shapes, input_shapes(bucket, shapes)),
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

    def dispatch(self, plan: Plan) -> StepResult:
        """Start a plan's step and return at once."""
        bucket = choose_bucket(plan, self.shapes)
        executable = self._executables[bucket_name(plan.kind, bucket)]
        self._state, token_ids = executable(self._weights, self._state, pack(plan, bucket, self.shapes))
        return StepResult(token_ids, row_indices(plan))

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
            self._state, token_ids = executable(self._weights, self._state, empty_inputs(bucket, self.shapes))
            token_ids.block_until_ready()
        self.copy_pages(
            [
                PageCopy(kind, 0, 0, (self.shapes.num_pages,) * size)
                for kind in CopyKind
                for size in self.shapes.copy_sizes
            ]
        )


def _copy_programs(model: PagedDecoder, shapes: EngineShapes, state_shapes: DeviceState) -> list[Program]:
    functions = {CopyKind.SAVE: save_pages, CopyKind.RESTORE: restore_pages}
    scalar = jax.ShapeDtypeStruct((), np.int32)
    return [
        Program(
            name=_copy_name(kind, size),
            function=functools.partial(function, model),
            shapes=(state_shapes, CopyInputs(scalar, scalar, jax.ShapeDtypeStruct((size,), np.int32))),
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
