"""Holds weights, device state and executables; dispatches steps without waiting for them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int

from service.compile.buckets import bucket_name
from service.compile.executable import Executable
from service.engine.batch import (
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
from service.engine.logprobs import unpack_logprobs
from service.engine.plan import CopyKind, PageCopy, Plan, PlannedRow, StepKind
from service.engine.programs import COUNT_TOKENS, INITIAL_STATE, copy_name, sample_name, score_name
from service.engine.request import StepLogprobs, TokenLogprobs
from service.engine.sampler import SampledRows
from service.engine.shapes import EngineShapes
from service.engine.step import DeviceState, Hidden
from service.models.interface import Weights


class StepResult(NamedTuple):
    """A step that may still be under way."""

    plan: Plan
    indices: list[int]  # where each row of the plan lies
    hidden: Hidden
    sampled: SampledRows | None  # None if no row is at its prompt's end
    prompt_logprobs: Int[Array, "seq token packed"] | None  # None if no row asks

    def read(self) -> Int[np.ndarray, " seq"]:
        """Wait for the step and return one token per row; -1 for one whose scores are no numbers."""
        if self.sampled is None:
            jax.block_until_ready(self.hidden.last)
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


class Runner:
    """Runs plans on the device, in the order in which they are dispatched."""

    def __init__(self, shapes: EngineShapes, weights: Weights, executables: Mapping[str, Executable]) -> None:
        self.shapes = shapes
        self._weights: list[jax.Array] = jax.tree.leaves(weights)
        self._executables = executables
        self._keeps_rows = copy_name(CopyKind.SAVE, shapes.copy_sizes[0]) in executables
        state: DeviceState = executables[INITIAL_STATE]((), [], ())
        self._state: list[jax.Array] = jax.tree.leaves(state)
        # On every device already, so that a step without a restriction carries no words.
        everywhere = state.token_counts.sharding
        self._all_allowed = {
            num_seqs: jax.device_put(all_allowed(num_seqs, state.token_counts.shape[1]), everywhere)
            for num_seqs in {bucket["num_seqs"] for _, bucket in shapes.buckets}
        }

    def run(self, name: str, inputs: Any) -> Any:
        """Start one program and return its outputs at once; the state moves on."""
        return self._executables[name](self._weights, self._state, inputs)

    def dispatch(self, plan: Plan) -> StepResult:
        """Start a plan's step, and what is to be made of it, and return at once."""
        bucket = choose_bucket(plan, self.shapes)
        num_seqs = bucket["num_seqs"]
        hidden: Hidden = self.run(bucket_name(plan.kind, bucket), pack(plan, bucket, self.shapes))
        sampled = scored = None
        if any(row.is_sampled for row in plan.rows):
            if plan.kind is StepKind.PREFILL:
                self._count_tokens(plan.rows)
            inputs = pack_sampling(plan, hidden.last, self.shapes, self._all_allowed[num_seqs])
            sampled = self.run(sample_name(plan.kind, num_seqs), inputs)
        if hidden.tokens is not None and any(_asks_for_prompt_logprobs(row) for row in plan.rows):
            scored = self.run(score_name(num_seqs, bucket["num_tokens"]), pack_prompt(plan, hidden.tokens))
        return StepResult(plan, row_indices(plan), hidden, sampled, scored)

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Start copies between slots' rows and pages; a kernel that reads pages in place needs none."""
        if self._keeps_rows:
            for copy in copies:
                for inputs in pack_copy(copy, self.shapes):
                    self.run(copy_name(copy.kind, len(inputs.pages)), inputs)

    def warm(self) -> None:
        """Run every executable once on padding, and wait; the first call of one loads it onto the device."""
        outputs = []
        for kind, bucket in self.shapes.buckets:
            num_seqs = bucket["num_seqs"]
            hidden: Hidden = self.run(bucket_name(kind, bucket), empty_inputs(bucket, self.shapes))
            inputs = empty_sample_inputs(kind, hidden.last, self.shapes, self._all_allowed[num_seqs])
            outputs.append(self.run(sample_name(kind, num_seqs), inputs))
            if hidden.tokens is not None:
                scored = self.run(score_name(num_seqs, bucket["num_tokens"]), empty_prompt_inputs(hidden.tokens))
                outputs.append(scored)
        self.run(COUNT_TOKENS, empty_count(self.shapes))
        no_pages = (self.shapes.num_pages,)
        self.copy_pages([PageCopy(kind, 0, 0, no_pages * size) for kind in CopyKind for size in self.shapes.copy_sizes])
        jax.block_until_ready((outputs, self._state))

    def _count_tokens(self, rows: Sequence[PlannedRow]) -> None:
        """Count the tokens of sequences with penalties anew just before they draw their first one in their slot.

        So the counts are right whoever had the slot before, however the prompt was cut into chunks, and whatever part
        of it was found in a cache or had come out of the sequence before it lost its slot.
        """
        for row in rows:
            if row.is_sampled and row.sequence.request.sampling.has_penalties:
                self.run(COUNT_TOKENS, pack_count(row, self.shapes))


def _asks_for_prompt_logprobs(row: PlannedRow) -> bool:
    return row.sequence.request.num_prompt_logprobs is not None
