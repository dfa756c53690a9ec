"""The device side of the engine: weights, device state and executables. Dispatches steps without waiting for them."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from service.compile.program import Executable
from service.engine.batch import PackedStep, pack, pack_prompt, pack_token_masks
from service.engine.executables import Executables
from service.engine.limits import MAX_LOGPROBS
from service.engine.request import StepLogprobs, TokenLogprobs
from service.engine.schedule.plan import Plan
from service.engine.shapes import AvailableSteps, Bucket, EngineShapes, StepKind
from service.engine.steps.inputs import (
    AdjustInputs,
    ChooseInputs,
    HostOrDevice,
    LogprobInputs,
    SampleTargets,
    StepInputs,
    empty_count,
    empty_options,
    empty_step,
    unrestricted_mask,
)
from service.engine.steps.keys import (
    Embed,
    InitialCache,
    Layers,
    ProgramKey,
    Sample,
    SamplingPart,
    SlotProgram,
    Whole,
    choice_parts,
)
from service.engine.steps.logprobs import FIRST_TOP
from service.engine.steps.step import SlotState
from service.engine.steps.whole import WholeInputs
from service.models.interface import LayerGroup, Weights


class DeviceState:
    """The slots and the caches of one engine, which a `Runner` updates from step to step.

    None of it needs weights, so a start makes it while weights are still loading.
    """

    def __init__(
        self, shapes: EngineShapes, groups: Sequence[LayerGroup], executables: Mapping[str, Executable]
    ) -> None:
        """Make the slots and the caches; on a CPU they occupy no memory until steps write them."""
        by_key = Executables(executables, shapes, groups)
        slots: SlotState = by_key[SlotProgram.INITIAL_SLOTS]((), [], ())
        self.slots: list[jax.Array] = jax.tree.leaves(slots)
        self.replicated = slots.token_counts.sharding  # of arrays that every device has a copy of
        self.vocab_size: int = slots.token_counts.shape[1]
        self.caches: list[list[jax.Array]] = [
            jax.tree.leaves(by_key[InitialCache(group.kind)]((), [], ())) for group in groups
        ]

    def run_whole(self, executable: Executable, weights: Sequence[jax.Array], inputs: WholeInputs) -> Any:
        """Start a program that takes all of the state, and return its outputs at once."""
        parts = [self.slots, *self.caches]
        state = list(itertools.chain.from_iterable(parts))
        outputs = executable(weights, state, inputs)
        changed = iter(state)
        for part in parts:
            part[:] = itertools.islice(changed, len(part))
        return outputs


class LayerGroupState(NamedTuple):
    """A layer group's arrays on the device, in the order in which its executables take them."""

    kind: str
    weights: list[jax.Array]
    cache: list[jax.Array]


class ModelOutputs(NamedTuple):
    """The outputs of the model's part of a step, which may still be in flight."""

    hidden: Float[Array, "seq token hidden"]
    last: Float[Array, "seq 1 hidden"]  # of each sequence's last token
    targets: SampleTargets


class SampledTokens(NamedTuple):
    """The outputs of a sampling, which may still be in flight."""

    token_ids: Int[Array, " seq"]  # BROKEN for a sequence that must fail
    logprobs: Int[Array, "seq packed"] | None = None  # as `pack_logprobs` returns them; None if none is requested

    def begin_copy(self) -> None:
        """Have them copied to the host as soon as they exist, rather than when they are read."""
        for array in self:
            if array is not None:
                array.copy_to_host_async()


class StepResult(NamedTuple):
    """A step that may still be in flight."""

    step: PackedStep
    sampled: SampledTokens | None  # None if no sequence reaches its prompt's end
    hidden: Float[Array, "seq token hidden"] | None = None  # there if nothing is sampled
    prompt_logprobs: tuple[Int[Array, "row packed"], ...] = ()  # of the targets that `pack_prompt` lays out

    def read(self) -> Int[np.ndarray, " seq"]:
        """Wait for the step and return one token per sequence; -1 for one whose logits are NaN or infinite."""
        if self.sampled is None:
            jax.block_until_ready(self.hidden)
            return np.zeros(len(self.step.indices), np.int32)  # never read: no sequence of the plan is sampled
        return np.asarray(self.sampled.token_ids)[self.step.indices]

    def read_logprobs(self) -> StepLogprobs | None:
        """Return the requested log-probabilities; if there are none, nothing is copied from the device."""
        if not self.step.has_logprobs and not self.prompt_logprobs:
            return None
        requests = [planned.sequence.request for planned in self.step.plan.seqs]
        num_tops = [request.sampling.num_logprobs for request in requests]
        return StepLogprobs(
            tokens=tuple(map(self._of_token, self.step.indices, num_tops)),
            prompts=tuple(self._of_prompts()),
        )

    def _of_token(self, index: int, num_top: int | None) -> TokenLogprobs | None:
        if num_top is None or self.sampled is None or self.sampled.logprobs is None:
            return None
        return unpack_logprobs(np.asarray(self.sampled.logprobs)[index], num_top)

    def _of_prompts(self) -> Iterator[tuple[TokenLogprobs, ...]]:
        rows = itertools.chain.from_iterable(map(np.asarray, self.prompt_logprobs))
        for planned, targets in zip(self.step.plan.seqs, self.step.prompt_targets, strict=True):
            num_top = planned.sequence.request.num_prompt_logprobs or 0
            yield tuple(unpack_logprobs(row, num_top) for row in itertools.islice(rows, len(targets)))


def unpack_logprobs(packed: Int[np.ndarray, " packed"], num_top: int) -> TokenLogprobs:
    """Return one token's log-probabilities from its row, as `pack_logprobs` lays it out."""
    logprobs = packed.view(np.float32)
    ids = packed[FIRST_TOP:][:num_top].tolist()
    top = logprobs[FIRST_TOP + MAX_LOGPROBS :][:num_top].tolist()
    pairs = tuple((token_id, logprob) for token_id, logprob in zip(ids, top, strict=True) if token_id >= 0)
    return TokenLogprobs(float(logprobs[0]), int(packed[1]), pairs)


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
            weights: the model's weights by name.
            executables: the compiled programs by name; they may still be loading.
            state: made before, for the same shapes and layer groups; None to make it now.
        """
        self.shapes = shapes
        self._weights: list[jax.Array] = jax.tree.leaves(weights)
        self._executables = Executables(executables, shapes, layer_groups)
        self._state = state or DeviceState(shapes, layer_groups, executables)
        self._groups = [
            LayerGroupState(group.kind, [weights[name] for name in group.weights], cache)
            for group, cache in zip(layer_groups, self._state.caches, strict=True)
        ]
        # On every device already, so that a step without a restriction sends no masks.
        self._unrestricted = {
            num_seqs: jax.device_put(unrestricted_mask(num_seqs, self._state.vocab_size), self._state.replicated)
            for num_seqs in {bucket.num_seqs for _, bucket in shapes.buckets}
        }

    def dispatch(self, plan: Plan, read_previous: Callable[[], None] = lambda: None) -> StepResult:
        """Start a plan's step and its sampling, and return at once.

        Args:
            plan: the step.
            read_previous: called while the step runs, before a sampling that depends on the previous step's tokens.
        """
        step = pack(plan, self._executables.available, self.shapes)
        if step.best_bucket != step.bucket:
            self._executables.prefer(plan.kind, step.best_bucket)
        return self.run(step, read_previous)

    def run(self, step: PackedStep, read_previous: Callable[[], None] = lambda: None) -> StepResult:
        """Start a packed step and its sampling, and return at once; see `dispatch`."""
        if step.choice is not None and step.is_plain:
            sampled = self.decode(step.bucket, step.inputs, step.choice)
            sampled.begin_copy()
            return StepResult(step, sampled)
        outputs = self.run_model(step.plan.kind, step.bucket, step.inputs)
        sampled = None
        if step.choice is not None:
            if step.options is not None:
                self._run(SlotProgram.SET_OPTIONS, step.options)
            for count in step.counts:
                self._run(SlotProgram.COUNT_TOKENS, count)
            if step.is_constrained:
                read_previous()
            token_mask = pack_token_masks(step, self._unrestricted[step.bucket.num_seqs])
            sampled = self.sample(outputs, token_mask, choice=step.choice, has_logprobs=step.has_logprobs)
            sampled.begin_copy()
        return StepResult(step, sampled, outputs.hidden, self._prompt_logprobs(step, outputs.hidden))

    def run_model(self, kind: StepKind, bucket: Bucket, inputs: StepInputs) -> ModelOutputs:
        """Start the model's part of a step."""
        group_inputs, targets = self._run(Embed(kind, bucket), inputs.packed)
        page_table = jax.device_put(inputs.page_table, self._state.replicated)
        group_inputs = group_inputs._replace(paging=group_inputs.paging._replace(page_table=page_table))
        hidden, last = group_inputs.hidden, None
        for group in self._groups:
            executable = self._executables[Layers(kind, bucket, group.kind)]
            hidden, last = executable(group.weights, group.cache, group_inputs)
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
            outputs: the outputs of the step.
            token_mask: one row per sequence; None if no option of a sequence changes its logits.
            choice: the program that suffices to choose the tokens; the general one is used until that is compiled.
            has_logprobs: whether to compute log-probabilities, too.
        """
        num_seqs, targets = len(outputs.last), outputs.targets
        logits = adjusted = self._run(Sample(SamplingPart.LOGITS, num_seqs), outputs.last)
        if token_mask is not None:
            adjusted = self._run(Sample(SamplingPart.ADJUST, num_seqs), AdjustInputs(logits, targets, token_mask))
        if not self._executables.is_usable(Sample(choice, num_seqs)):
            choice = SamplingPart.CHOOSE
        token_ids = self._run(Sample(choice, num_seqs), ChooseInputs(adjusted, targets))
        if not has_logprobs:
            return SampledTokens(token_ids)
        logprobs = self._run(Sample(SamplingPart.LOGPROBS, num_seqs), LogprobInputs(logits, token_ids))
        return SampledTokens(token_ids, logprobs)

    def decode(self, bucket: Bucket, inputs: StepInputs, choice: SamplingPart) -> SampledTokens:
        """Start a decode step whose tokens are only chosen: as one program, where there is one."""
        whole = Whole(choice, bucket)
        if self.shapes.has_whole_steps and self._executables.is_usable(whole):
            packed = WholeInputs(inputs.packed, inputs.page_table)
            return SampledTokens(self._state.run_whole(self._executables[whole], self._weights, packed))
        return self.sample(self.run_model(StepKind.DECODE, bucket, inputs), choice=choice)

    @property
    def may_wait(self) -> bool:
        """Whether executables are still being loaded or compiled, so that a step may wait for one."""
        return self._executables.is_loading

    @property
    def waited_for_compile_s(self) -> float:
        """How long steps have waited for executables so far."""
        return self._executables.waited_s

    def available_steps(self) -> AvailableSteps:
        """Return the steps that run without waiting for an executable."""
        return self._executables.available

    def cache_leaves(self) -> list[jax.Array]:
        """Return the arrays of all caches, as they are after the last dispatched step."""
        return [leaf for cache in self._state.caches for leaf in cache]

    def padded_steps(self) -> Iterator[Callable[[], None]]:
        """Yield calls that together run every executable once on padding; they may run between other steps."""
        for kind, bucket in self.shapes.buckets:
            yield functools.partial(self._run_padded, kind, bucket)
        yield self._run_padded_options

    def warm(self) -> None:
        """Run every executable once on padding, and wait; the first call of one loads it onto the device."""
        for run in self.padded_steps():
            run()

    def _run_padded(self, kind: StepKind, bucket: Bucket) -> None:
        inputs = empty_step(bucket, self.shapes)
        step = self.run_model(kind, bucket, inputs)
        unrestricted = self._unrestricted[bucket.num_seqs]
        for choice in choice_parts(self.shapes):
            jax.block_until_ready(self.sample(step, unrestricted, choice=choice, has_logprobs=True))
            if kind is StepKind.DECODE and self.shapes.has_whole_steps:
                jax.block_until_ready(self.decode(bucket, inputs, choice))

    def _run_padded_options(self) -> None:
        """Set the options and count the tokens of no slot."""
        options = empty_options(self.shapes.prefill_seqs[-1], self.shapes)
        self._run(SlotProgram.SET_OPTIONS, options)
        self._run(SlotProgram.COUNT_TOKENS, empty_count(self.shapes))
        jax.block_until_ready(self._state.slots)

    def _run(self, key: ProgramKey, inputs: Any) -> Any:
        """Start a program that updates the slots, and return its outputs at once."""
        return self._executables[key](self._weights, self._state.slots, inputs)

    def _prompt_logprobs(
        self, step: PackedStep, hidden: Float[Array, "seq token hidden"]
    ) -> tuple[Int[Array, "row packed"], ...]:
        """Start the log-probabilities of a prefill's targets, by the programs that sampled tokens have."""
        if not any(step.prompt_targets):
            return ()  # without waiting for the hidden states
        num_rows = self.shapes.all_seq_counts[-1]
        packed = []
        for rows, target_ids in pack_prompt(step, np.asarray(hidden), num_rows):
            logits = self._run(Sample(SamplingPart.LOGITS, num_rows), rows)
            packed.append(self._run(Sample(SamplingPart.LOGPROBS, num_rows), LogprobInputs(logits, target_ids)))
        return tuple(packed)
