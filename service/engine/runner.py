"""Holds weights, device state and executables; dispatches steps without waiting for them."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from service.compile.aot import Program
from service.compile.buckets import Bucket, bucket_name
from service.engine.batch import choose_bucket, empty_inputs, pack, row_indices
from service.engine.scheduler import Plan, StepKind
from service.engine.shapes import EngineShapes
from service.engine.step import DeviceState, initial_state, input_shapes, run_step
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
    ]


class Runner:
    """Runs plans on the device, in the order in which they are dispatched."""

    def __init__(self, shapes: EngineShapes, weights: Weights, executables: Mapping[str, jax.stages.Compiled]) -> None:
        self.shapes = shapes
        self._weights = weights
        self._executables = executables
        self._state: DeviceState = executables[INITIAL_STATE]()

    def dispatch(self, plan: Plan) -> StepResult:
        """Start a plan's step and return at once."""
        bucket = choose_bucket(plan, self.shapes)
        executable = self._executables[bucket_name(plan.kind, bucket)]
        self._state, token_ids = executable(self._weights, self._state, pack(plan, bucket, self.shapes))
        return StepResult(token_ids, row_indices(plan))

    def warm(self) -> None:
        """Run every executable once on padding, and wait; the first call of one loads it onto the device."""
        for kind, bucket in _all_buckets(self.shapes):
            executable = self._executables[bucket_name(kind, bucket)]
            self._state, token_ids = executable(self._weights, self._state, empty_inputs(bucket, self.shapes))
            token_ids.block_until_ready()


def _all_buckets(shapes: EngineShapes) -> list[tuple[StepKind, Bucket]]:
    grids = {StepKind.PREFILL: shapes.prefill_grid, StepKind.DECODE: shapes.decode_grid}
    return [(kind, bucket) for kind, grid in grids.items() for bucket in grid]
