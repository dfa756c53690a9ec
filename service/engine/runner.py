"""Holds weights, device state and executables; dispatches steps without waiting for them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from service.compile.buckets import Bucket
from service.compile.program import Executable
from service.engine.device_state import DeviceState, StageCache
from service.engine.request import StepLogprobs, TokenLogprobs
from service.engine.schedule.plan import CopyKind, PageCopy, Plan, PlannedRow, StepKind
from service.engine.shapes import EngineShapes
from service.engine.steps.batch import (
    Drawing,
    LastInputs,
    PromptInputs,
    SampleInputs,
    StepInputs,
    all_allowed,
    choose_bucket,
    empty_count,
    empty_inputs,
    empty_prompt_inputs,
    empty_sample_inputs,
    pack,
    pack_copy,
    pack_count,
    pack_prompt,
    pack_sampling,
    row_indices,
)
from service.engine.steps.logprobs import unpack_logprobs
from service.engine.steps.programs import (
    COUNT_TOKENS,
    copy_name,
    embed_name,
    last_name,
    sample_name,
    score_name,
    stage_name,
)
from service.engine.steps.sampler import SampledRows
from service.models.interface import Stage, Weights


class StepResult(NamedTuple):
    """A step that may still be under way."""

    plan: Plan
    indices: list[int]  # where each row of the plan lies
    hidden: Float[Array, "seq token hidden"]
    sampled: SampledRows | None  # None if no row is at its prompt's end
    prompt_logprobs: Int[Array, "seq token packed"] | None  # None if no row asks

    def read(self) -> Int[np.ndarray, " seq"]:
        """Wait for the step and return one token per row; -1 for one whose scores are no numbers."""
        if self.sampled is None:
            jax.block_until_ready(self.hidden)
            return np.zeros(len(self.indices), np.int32)  # of rows that are not sampled: nobody looks
        return np.asarray(self.sampled.token_ids)[self.indices]

    def read_logprobs(self) -> StepLogprobs | None:
        """Return the log-probabilities that were asked for; without any, nothing is copied from the device."""
        requests = [row.sequence.request for row in self.plan.rows]
        if all(r.sampling.num_logprobs is None and r.num_prompt_logprobs is None for r in requests):
            return None
        return StepLogprobs(
            tokens=tuple(
                self._token_logprobs(i, r.sampling.num_logprobs) for i, r in zip(self.indices, requests, strict=True)
            ),
            prompts=tuple(self._prompt_logprobs(i, row) for i, row in zip(self.indices, self.plan.rows, strict=True)),
        )

    def _token_logprobs(self, index: int, num_top: int | None) -> TokenLogprobs | None:
        if num_top is None or self.sampled is None:
            return None
        return unpack_logprobs(np.asarray(self.sampled.logprobs)[index], num_top)

    def _prompt_logprobs(self, index: int, row: PlannedRow) -> tuple[TokenLogprobs, ...]:
        request = row.sequence.request
        if request.num_prompt_logprobs is None or self.prompt_logprobs is None:
            return ()
        packed = np.asarray(self.prompt_logprobs)[index]
        num_targets = min(len(row.token_ids), len(request.prompt_ids) - 1 - row.start)
        return tuple(unpack_logprobs(packed[i], request.num_prompt_logprobs) for i in range(num_targets))


class ModelOutputs(NamedTuple):
    """The model's part of a step, under way."""

    hidden: Float[Array, "seq token hidden"]
    last: Float[Array, "seq 1 hidden"]  # of each row's last token
    drawing: Drawing


class _StageOnDevice:
    """A stage's weights and cache, in the order in which its executables take them."""

    def __init__(
        self, stage: Stage, cache: StageCache, weights: Weights, executables: Mapping[str, Executable]
    ) -> None:
        self.stage = stage
        self._cache = cache
        self._weights = [weights[name] for name in stage.weights]
        self._executables = executables

    def run(self, name: str, inputs: Any) -> Any:
        """Start a program of the stage and return its outputs at once; the cache moves on."""
        executable = self._executables[name]
        self._cache.grow(executable.reach)
        return executable(self._weights, self._cache.leaves, inputs)


class Runner:
    """Runs plans on the device, in the order in which they are dispatched."""

    def __init__(
        self,
        shapes: EngineShapes,
        stages: Sequence[Stage],
        weights: Weights,
        executables: Mapping[str, Executable],
        state: DeviceState | None = None,
    ) -> None:
        """Put a runner together.

        Args:
            shapes: the sizes that the executables were compiled for.
            stages: the model's layers, in those parts in which they were compiled.
            weights: by name.
            executables: by name.
            state: what was made of it already, for these stages out of these executables.
        """
        self.shapes = shapes
        self._weights: list[jax.Array] = jax.tree.leaves(weights)
        self._executables = executables
        self._keeps_rows = copy_name(CopyKind.SAVE, shapes.copy_sizes[0], stages[0]) in executables
        self._state = state or DeviceState(stages, executables)
        self._stages = [
            _StageOnDevice(stage, cache, weights, executables)
            for stage, cache in zip(stages, self._state.caches, strict=True)
        ]
        # On every device already, so that a step without a restriction carries no words.
        self._all_allowed = {
            num_seqs: jax.device_put(all_allowed(num_seqs, self._state.vocab_size), self._state.everywhere)
            for num_seqs in {bucket["num_seqs"] for _, bucket in shapes.buckets}
        }

    def run_model(self, kind: StepKind, bucket: Bucket, inputs: StepInputs) -> ModelOutputs:
        """Start the model's part of a step."""
        stage_inputs, drawing = self._run(embed_name(kind, bucket), inputs.packed)
        for on_device in self._stages:
            hidden = on_device.run(stage_name(kind, bucket, on_device.stage), stage_inputs)
            stage_inputs = stage_inputs._replace(hidden=hidden)
        hidden = last = stage_inputs.hidden
        if kind is StepKind.PREFILL:
            last = self._run(last_name(*hidden.shape[:2]), LastInputs(hidden, stage_inputs.paging.num_tokens))
        return ModelOutputs(hidden, last, drawing)

    def draw(self, kind: StepKind, inputs: SampleInputs) -> SampledRows:
        """Start the draw of the tokens that come after a step."""
        return self._run(sample_name(kind, len(inputs.hidden)), inputs)

    def dispatch(self, plan: Plan) -> StepResult:
        """Start a plan's step, and what is to be made of it, and return at once."""
        bucket = choose_bucket(plan, self.shapes)
        outputs = self.run_model(plan.kind, bucket, pack(plan, bucket, self.shapes))
        sampled = scored = None
        if any(row.is_sampled for row in plan.rows):
            if plan.kind is StepKind.PREFILL:
                self._count_tokens(plan.rows)
            everything_allowed = self._all_allowed[bucket["num_seqs"]]
            sampled = self.draw(plan.kind, pack_sampling(plan, outputs.last, outputs.drawing, everything_allowed))
        if plan.kind is StepKind.PREFILL and any(_asks_for_prompt_logprobs(row) for row in plan.rows):
            scored = self._score_prompts(pack_prompt(plan, outputs.hidden))
        return StepResult(plan, row_indices(plan), outputs.hidden, sampled, scored)

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Start copies between slots' rows and pages; a kernel that reads pages in place needs none."""
        if self._keeps_rows:
            for copy in copies:
                for inputs in pack_copy(copy, self.shapes):
                    for on_device in self._stages:
                        on_device.run(copy_name(copy.kind, len(inputs.pages), on_device.stage), inputs)

    @property
    def has_pages(self) -> bool:
        """Whether the last part of each cache, which copies need, is there already."""
        return self._state.is_filled

    def fill_caches(self) -> None:
        """Make what no step has reached yet of the caches; may run beside steps, on another thread."""
        self._state.fill_caches()

    def warm(self) -> None:
        """Run every executable once on padding, and wait; the first call of one loads it onto the device."""
        drawn: list[Any] = []
        for kind, bucket in self.shapes.buckets:
            outputs = self.run_model(kind, bucket, empty_inputs(bucket, self.shapes))
            everything_allowed = self._all_allowed[bucket["num_seqs"]]
            drawn.append(self.draw(kind, empty_sample_inputs(kind, outputs.last, outputs.drawing, everything_allowed)))
            if kind is StepKind.PREFILL:
                drawn.append(self._score_prompts(empty_prompt_inputs(outputs.hidden)))
        self._run(COUNT_TOKENS, empty_count(self.shapes))
        no_pages = (self.shapes.num_pages,)
        self.copy_pages([PageCopy(kind, 0, 0, no_pages * size) for kind in CopyKind for size in self.shapes.copy_sizes])
        self.fill_caches()
        jax.block_until_ready((drawn, self._state.slots, [cache.leaves for cache in self._state.caches]))

    def _run(self, name: str, inputs: Any) -> Any:
        """Start a program on the slots and return its outputs at once; the slots' state moves on."""
        return self._executables[name](self._weights, self._state.slots, inputs)

    def _score_prompts(self, inputs: PromptInputs) -> Int[Array, "seq token packed"]:
        return self._run(score_name(*inputs.target_ids.shape), inputs)

    def _count_tokens(self, rows: Sequence[PlannedRow]) -> None:
        """Count the tokens of sequences with penalties anew just before they draw their first one in their slot.

        So the counts are right whoever had the slot before, however the prompt was cut into chunks, and whatever part
        of it was found in a cache or had come out of the sequence before it lost its slot.
        """
        for row in rows:
            if row.is_sampled and row.sequence.request.sampling.has_penalties:
                self._run(COUNT_TOKENS, pack_count(row, self.shapes))


def _asks_for_prompt_logprobs(row: PlannedRow) -> bool:
    return row.sequence.request.num_prompt_logprobs is not None
