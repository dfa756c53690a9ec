"""The device side of the engine: weights, device state and executables. Dispatches steps without waiting for them."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from service.compile.program import Executable
from service.engine.available_steps import AvailableSteps
from service.engine.batch import (
    SampledTokens,
    StepResult,
    batch_indices,
    has_logprobs,
    is_adjusted,
    is_plain,
    needed_bucket,
    pack,
    pack_copy,
    pack_count,
    pack_prompt,
    pack_slot_options,
    pack_token_masks,
    prompt_targets,
    sufficient_choice,
)
from service.engine.device_state import DeviceState, LayerGroupOnDevice
from service.engine.prefill_row import PrefillRow
from service.engine.schedule.pages import PageCopy
from service.engine.schedule.plan import Plan, PlannedSequence
from service.engine.shapes import Bucket, EngineShapes, StepKind
from service.engine.step_executables import DeferredExecutable, StepExecutables
from service.engine.steps.inputs import (
    AdjustInputs,
    ChooseInputs,
    HostOrDevice,
    LogprobInputs,
    SampleTargets,
    StepInputs,
    empty_copy,
    empty_count,
    empty_options,
    empty_step,
    unrestricted_mask,
)
from service.engine.steps.names import SamplingPart
from service.engine.steps.whole import WholeInputs
from service.kernels.cache_layout import CopyKind
from service.kernels.paging import RowPages
from service.models.interface import LayerGroup, Weights


class ModelOutputs(NamedTuple):
    """The outputs of the model's part of a step, which may still be in flight."""

    hidden: Float[Array, "seq token hidden"]
    last: Float[Array, "seq 1 hidden"]  # of each sequence's last token
    targets: SampleTargets


class Runner:
    """Runs plans on the device, in the order in which they are dispatched."""

    def __init__(
        self,
        shapes: EngineShapes,
        layer_groups: Sequence[LayerGroup],
        weights: Weights,
        executables: Mapping[str, Executable],
        state: DeviceState | None = None,
    ) -> None:
        """Connect weights, state and executables.

        Args:
            shapes: the sizes that the executables were compiled for.
            layer_groups: the model's layers, as they were compiled.
            weights: by name.
            executables: by name; they may still be loading.
            state: made before, for the same shapes and layer groups; None to make it now.
        """
        self.shapes = shapes
        self._weights: list[jax.Array] = jax.tree.leaves(weights)
        self._executables = StepExecutables(executables, shapes, layer_groups)
        self._state = state or DeviceState(shapes, layer_groups, executables)
        self._groups = [
            LayerGroupOnDevice(group, cache, weights)
            for group, cache in zip(layer_groups, self._state.caches, strict=True)
        ]
        self._prefill_row = PrefillRow(shapes)
        self._inserts: list[PageCopy] = []  # with the next step: a first token does not wait for their program
        self._unread_tables: dict[tuple[int, int], jax.Array] = {}
        # On every device already, so that a step without a restriction sends no masks.
        self._unrestricted = {
            num_seqs: jax.device_put(unrestricted_mask(num_seqs, self._state.vocab_size), self._state.replicated)
            for num_seqs in {bucket.num_seqs for _, bucket in shapes.buckets}
        }

    def run_model(self, kind: StepKind, bucket: Bucket, inputs: StepInputs) -> ModelOutputs:
        """Start the model's part of a step."""
        executables = self._executables.model[kind, bucket]
        group_inputs, targets = self._run(executables.embed, inputs.packed)
        page_table = self._page_table(bucket, inputs)
        group_inputs = group_inputs._replace(paging=group_inputs.paging._replace(page_table=page_table))
        hidden, last = group_inputs.hidden, None
        for group, executable in zip(self._groups, executables.layer_groups, strict=True):
            hidden, last = group.run(executable.get(), group_inputs)
            group_inputs = group_inputs._replace(hidden=hidden)
        return ModelOutputs(hidden, hidden if last is None else last, targets)

    def sample(
        self,
        outputs: ModelOutputs,
        token_mask: HostOrDevice | None = None,
        *,
        choice: SamplingPart = SamplingPart.CHOOSE,
        has_logprobs: bool = False,
    ) -> SampledTokens:
        """Start the sampling of the tokens that follow a step.

        Args:
            outputs: of the step.
            token_mask: one row per sequence; None if no option of a sequence changes its logits.
            choice: the program that chooses the tokens.
            has_logprobs: whether to compute log-probabilities, too.
        """
        last, targets = outputs.last, outputs.targets
        logits = adjusted = self._run_sampling(SamplingPart.LOGITS, len(last), last)
        if token_mask is not None:
            adjusted = self._run_sampling(SamplingPart.ADJUST, len(last), AdjustInputs(logits, targets, token_mask))
        token_ids = self._run_sampling(choice, len(last), ChooseInputs(adjusted, targets))
        if not has_logprobs:
            return SampledTokens(token_ids)
        logprobs = self._run_sampling(SamplingPart.LOGPROBS, len(last), LogprobInputs(logits, token_ids))
        return SampledTokens(token_ids, logprobs)

    def decode(self, bucket: Bucket, inputs: StepInputs, choice: SamplingPart) -> SampledTokens:
        """Start a decode step whose tokens are only chosen: as one program, where there is one."""
        whole = self._executables.whole(choice, bucket)
        if whole is not None:
            packed = WholeInputs(inputs.packed, inputs.page_table)
            return SampledTokens(self._state.run_whole(whole.get(), self._weights, packed))
        outputs = self.run_model(StepKind.DECODE, bucket, inputs)
        return self.sample(outputs, choice=self._executables.choice(choice, bucket.num_seqs))

    def dispatch(self, plan: Plan, read_previous: Callable[[], None] = lambda: None) -> StepResult:
        """Start a plan's step and its sampling, and return at once.

        Args:
            plan: the step.
            read_previous: called while the step runs, before a sampling that depends on the previous step's tokens.
        """
        needed = needed_bucket(plan, self.shapes)
        bucket = self._executables.available.grids[plan.kind].smallest(needed)
        if not self._executables.available.is_complete:
            self._prefer_best(plan, needed)
        inputs = pack(plan, bucket, self.shapes)
        self.copy_pages(self._prefill_row.before(plan, bucket))
        if plan.kind is StepKind.DECODE and is_plain(plan):
            sampled = self.decode(bucket, inputs, self._sufficient_choice(plan))
            sampled.begin_copy()
            return StepResult(plan, batch_indices(plan), sampled)
        outputs = self.run_model(plan.kind, bucket, inputs)
        sampled = None
        if any(planned.is_sampled for planned in plan.seqs):
            if plan.kind is StepKind.PREFILL:
                self._run(self._executables.set_options, pack_slot_options(plan, self.shapes))
                self._count_tokens(plan.seqs)
            if any(planned.sequence.request.constraint is not None for planned in plan.seqs):
                read_previous()
            unrestricted = self._unrestricted[bucket.num_seqs]
            sampled = self.sample(
                outputs,
                pack_token_masks(plan, unrestricted) if is_adjusted(plan) else None,
                choice=self._executables.choice(self._sufficient_choice(plan), bucket.num_seqs),
                has_logprobs=has_logprobs(plan),
            )
            sampled.begin_copy()
        prompt_logprobs: tuple[Int[Array, "row packed"], ...] = ()
        if plan.kind is StepKind.PREFILL and any(map(prompt_targets, plan.seqs)):
            prompt_logprobs = self._prompt_logprobs(plan, outputs.hidden)
        self._inserts = self._prefill_row.after(plan, bucket)
        return StepResult(plan, batch_indices(plan), sampled, outputs.hidden, prompt_logprobs)

    def _sufficient_choice(self, plan: Plan) -> SamplingPart:
        return sufficient_choice(plan) if self.shapes.has_sampling_variants else SamplingPart.CHOOSE

    @property
    def may_wait(self) -> bool:
        """Whether executables are still being loaded or compiled, so that a step or a copy may wait for one."""
        return self._executables.are_in_the_making

    @property
    def waited_for_compile_s(self) -> float:
        """How long steps have waited for executables so far."""
        return self._executables.waited_s

    def available_steps(self) -> AvailableSteps:
        """Return the steps that run without waiting, as many as there are now."""
        self._executables.available.refresh()
        return self._executables.available

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Start copies of the prefill row and then others; a kernel that reads pages in place needs none."""
        if self.shapes.has_slot_cache:
            inserts, self._inserts = self._inserts, []
            for copy in (*inserts, *copies):
                self._copy(copy.kind, pack_copy(copy, self.shapes))

    def cache_leaves(self) -> list[jax.Array]:
        """Return the arrays of all caches, as they are after the last dispatched step."""
        return [leaf for cache in self._state.caches for leaf in cache]

    def padded_steps(self) -> Iterator[Callable[[], None]]:
        """Yield calls that together run every executable once on padding; they may run between other steps."""
        for kind, bucket in self.shapes.buckets:
            yield functools.partial(self._run_padded, kind, bucket)
        yield self._run_padded_copies

    def warm(self) -> None:
        """Run every executable once on padding, and wait; the first call of one loads it onto the device."""
        for run in self.padded_steps():
            run()

    def _run_padded(self, kind: StepKind, bucket: Bucket) -> None:
        inputs = empty_step(bucket, self.shapes)
        step = self.run_model(kind, bucket, inputs)
        unrestricted = self._unrestricted[bucket.num_seqs]
        for choice in self._executables.choices:
            jax.block_until_ready(self.sample(step, unrestricted, choice=choice, has_logprobs=True))
            if kind is StepKind.DECODE and self.shapes.has_whole_steps:
                jax.block_until_ready(self.decode(bucket, inputs, choice))

    def _run_padded_copies(self) -> None:
        """Copy between no slot and no page, and set the options and count the tokens of no slot."""
        self._run(self._executables.set_options, empty_options(self.shapes.prefill_seqs[-1], self.shapes))
        self._run(self._executables.count_tokens, empty_count(self.shapes))
        for kind in self._executables.copies:
            self._copy(kind, empty_copy(self.shapes))
        jax.block_until_ready((self._state.slots, self.cache_leaves()))

    def _copy(self, kind: CopyKind, inputs: RowPages) -> None:
        for group, executable in zip(self._groups, self._executables.copies[kind], strict=True):
            group.run(executable.get(), inputs)

    def _prefer_best(self, plan: Plan, needed: Bucket) -> None:
        """Have the step compiled next that would serve a plan best."""
        if plan.kind is StepKind.PREFILL and needed.num_seqs == 1:
            [planned] = plan.seqs
            rest = planned.sequence.prefill_len - planned.start
            needed = needed._replace(num_tokens=min(rest, self.shapes.prefill.chunk_sizes[-1]))
        self._executables.prefer(plan.kind, self.shapes.grids[plan.kind].smallest(needed))

    def _run(self, executable: DeferredExecutable, inputs: Any) -> Any:
        """Start a program that updates the slots, and return its outputs at once."""
        return executable.get()(self._weights, self._state.slots, inputs)

    def _page_table(self, bucket: Bucket, inputs: StepInputs) -> jax.Array:
        """Return a step's page table on the device; where no step reads pages, one that is there already."""
        if not self.shapes.has_slot_cache:
            return jax.device_put(inputs.page_table, self._state.replicated)
        shape = (bucket.num_seqs, bucket.num_pages)
        if shape not in self._unread_tables:
            self._unread_tables[shape] = jax.device_put(inputs.page_table, self._state.replicated)
        return self._unread_tables[shape]

    def _run_sampling(self, part: SamplingPart, num_seqs: int, inputs: Any) -> Any:
        return self._run(self._executables.sampling[part, num_seqs], inputs)

    def _prompt_logprobs(
        self, plan: Plan, hidden: Float[Array, "seq token hidden"]
    ) -> tuple[Int[Array, "row packed"], ...]:
        """Start the log-probabilities of a prefill's targets, by the programs that sampled tokens have."""
        num_rows = self.shapes.all_seq_counts[-1]
        packed = []
        for rows, target_ids in pack_prompt(plan, np.asarray(hidden), num_rows):
            logits = self._run_sampling(SamplingPart.LOGITS, num_rows, rows)
            packed.append(self._run_sampling(SamplingPart.LOGPROBS, num_rows, LogprobInputs(logits, target_ids)))
        return tuple(packed)

    def _count_tokens(self, seqs: Sequence[PlannedSequence]) -> None:
        """Count the tokens of sequences with penalties just before each samples its first token in its slot.

        So the counts do not depend on the slot's previous owner, on how the prompt was cut into chunks, or on how much
        of it was cached or generated before the sequence was preempted.
        """
        for planned in seqs:
            if planned.is_sampled and planned.sequence.request.sampling.has_penalties:
                self._run(self._executables.count_tokens, pack_count(planned, self.shapes))
