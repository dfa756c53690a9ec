"""The device side of the engine: weights, device state and executables. Dispatches steps without waiting for them."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from service.compile.program import Executable
from service.engine.batch import PackedStep, attention_of, pack, pack_heads, pack_prompts, pack_token_masks
from service.engine.executables import Executables
from service.engine.limits import MAX_ATTENTION_HEADS, MAX_LOGPROBS
from service.engine.page_tables import PageTables
from service.engine.request import Adapter, Medium, StepLogprobs, TokenLogprobs
from service.engine.schedule.memory import EncoderPart, Memory
from service.engine.schedule.plan import Plan
from service.engine.shapes import AvailableSteps, Bucket, EngineShapes, RowShapes
from service.engine.steps.encode import AttendInputs, KeepInputs, RememberInputs
from service.engine.steps.features import taps_in
from service.engine.steps.inputs import (
    AdapterInputs,
    Drafted,
    EmbedInputs,
    HostOrDevice,
    PromptInputs,
    SampleInputs,
    StepInputs,
    empty_count,
    empty_options,
    empty_step,
    no_drafts,
    scalar,
    unrestricted_mask,
    with_media,
)
from service.engine.steps.keys import (
    Embed,
    EncoderStage,
    Hidden,
    Layers,
    MemoryPart,
    OfEncoder,
    OfMemory,
    ProgramKey,
    Sample,
    Sampler,
    SingleProgram,
    Verify,
    Whole,
    WriteAdapter,
    sample_keys,
    usual_sampler,
    verify_keys,
    whole_keys,
)
from service.engine.steps.logprobs import FIRST_TOP
from service.engine.steps.sampling import Sampled
from service.engine.steps.step import Embedded, GroupOutputs, SlotState, StepGroupInputs
from service.models.interface import LayerGroup, Weights

# A GPU runs a program's kernels one by one the first time, and records them as a graph the second time.
# Source: https://github.com/openxla/xla/blob/main/xla/backends/gpu/runtime/command_buffer_thunk.cc
RUNS_TO_RECORD = 2


class DeviceState:
    """The slots and the caches of one engine, which a `Runner` updates from step to step.

    None of it needs weights, so a start makes it while weights are still loading.
    """

    def __init__(
        self, shapes: EngineShapes, groups: Sequence[LayerGroup], executables: Mapping[str, Executable]
    ) -> None:
        """Make the slots and the caches; on a CPU they occupy no memory until steps write them."""
        by_key = Executables(executables, shapes, groups)
        slots: SlotState
        slots, caches, adapters, rows, features, draft_cache = by_key[SingleProgram.INITIAL_STATE]((), [], ())
        self.slots: list[jax.Array] = jax.tree.leaves(slots)
        self.replicated = slots.token_counts.sharding  # of arrays that every device has a copy of
        self.vocab_size: int = slots.token_counts.shape[1]
        self.caches: list[list[jax.Array]] = [jax.tree.leaves(cache) for cache in caches]
        self.rows: list[jax.Array] = jax.tree.leaves(rows)  # of all media; empty for a model without images
        self.features: list[jax.Array] = jax.tree.leaves(features)  # one array, or none without a head
        self.draft_cache: list[jax.Array] = jax.tree.leaves(draft_cache)  # of a draft model or a head
        # The slots of adapters, of each layer group, by the names of the arrays.
        self.adapters: list[dict[str, jax.Array]] = [
            dict(zip(group.adapters, arrays, strict=True)) for group, arrays in zip(groups, adapters, strict=True)
        ]

    def run_whole(self, executable: Executable, weights: Sequence[jax.Array], inputs: EmbedInputs) -> Any:
        """Start a program that takes all of the state, and return its outputs at once."""
        parts = [self.slots, *self.caches, self.features]
        state = list(itertools.chain.from_iterable(parts))
        outputs = executable(weights, state, inputs)
        changed = iter(state)
        for part in parts:
            part[:] = itertools.islice(changed, len(part))
        return outputs

    def run_layers(
        self, executable: Executable, weights: Sequence[jax.Array], cache: list[jax.Array], inputs: StepGroupInputs
    ) -> GroupOutputs:
        """Start the program of a layer group, whose state is its cache and the features; return its outputs at once."""
        if not self.features:
            return executable(weights, cache, inputs)
        state = [*cache, *self.features]
        outputs = executable(weights, state, inputs)
        cache[:], self.features[:] = state[: len(cache)], state[len(cache) :]
        return outputs


# By the layers of each group: what their heads attend to.
type LayerScores = tuple[tuple[range, Float[Array, "layer head prompt_token position"]], ...]


class LayerGroupState(NamedTuple):
    """A layer group's arrays on the device, in the order in which its executables take them."""

    kind: str
    layers: range
    weights: list[jax.Array]
    cache: list[jax.Array]
    taps: jax.Array | None = None  # as `taps_in` returns them; None of an engine that keeps no features


class ModelOutputs(NamedTuple):
    """The outputs of the model's part of a step, which may still be in flight."""

    hidden: Float[Array, "token hidden"]
    last: Float[Array, "slot hidden"]  # of the token before the one to be sampled
    sampled: Int[Array, " slot"]  # positions of the tokens to be sampled
    scores: LayerScores = ()  # of the heads that are wanted


class EncodedPart(NamedTuple):
    """A part of an encoding that may still be in flight."""

    output: Float[Array, "..."]

    def read(self) -> Int[np.ndarray, " seq"]:
        """Wait for the part; it has no tokens."""
        jax.block_until_ready(self.output)
        return np.zeros(0, np.int32)

    def read_logprobs(self) -> None:
        """Return nothing: no token was sampled."""


class StepResult(NamedTuple):
    """A step that may still be in flight."""

    step: PackedStep
    sampled: Sampled | None  # None if no sequence reaches its prompt's end
    hidden: Float[Array, "token hidden"] | None = None  # there if nothing is sampled
    prompt_logprobs: tuple[Int[Array, "position packed"], ...] = ()  # of the targets that `pack_prompts` lays out
    scores: LayerScores = ()  # of the heads that are wanted
    memory_len: int = 0

    def read(self) -> Int[np.ndarray, " seq"]:
        """Wait for the step and return its tokens; see `DispatchedStep`."""
        if self.sampled is None:
            jax.block_until_ready(self.hidden)
            return np.zeros(len(self.step.samples), np.int32)  # never read: no sequence of the plan is sampled
        return np.asarray(self.sampled.token_ids)[self.step.samples]

    def read_logprobs(self) -> StepLogprobs | None:
        """Return the requested log-probabilities; if there are none, nothing is copied from the device."""
        if not self.step.has_logprobs and not self.prompt_logprobs and not self.scores:
            return None
        by_layer = {
            layer: of_layer
            for layers, scores in self.scores
            for layer, of_layer in zip(layers, np.asarray(scores), strict=True)
        }
        num_tops = [
            planned.sequence.request.sampling.num_logprobs
            for planned in self.step.plan.seqs
            for _ in range(planned.num_samples)
        ]
        return StepLogprobs(
            tokens=tuple(map(self._of_token, self.step.samples, num_tops)),
            prompts=tuple(self._of_prompts()),
            attention=tuple(attention_of(self.step, by_layer, self.memory_len)) if by_layer else (),
        )

    def _of_token(self, sample: int, num_top: int | None) -> TokenLogprobs | None:
        if num_top is None or self.sampled is None or self.sampled.logprobs is None:
            return None
        return unpack_logprobs(np.asarray(self.sampled.logprobs)[sample], num_top)

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
        *,
        encoder_groups: Sequence[LayerGroup] = (),
    ) -> None:
        """Connect weights, state and executables.

        Args:
            shapes: the sizes that the executables were compiled for.
            layer_groups: the model's layers, as they were compiled.
            weights: the model's weights by name.
            executables: the compiled programs by name; they may still be loading.
            state: made before, for the same shapes and layer groups; None to make it now.
            encoder_groups: the layers of the model's encoder, if it has one, as they were compiled.
        """
        self.shapes = shapes
        self._encoder_groups = [
            LayerGroupState(group.kind, group.layers, [weights[name] for name in group.weights], [])
            for group in encoder_groups
        ]
        self._encoded: jax.Array | None = None  # the hidden states of the memory that is being encoded
        self._unembed = weights.get("unembed", weights.get("embed"))
        self._executables = Executables(executables, shapes, layer_groups)
        self._state = state or DeviceState(shapes, layer_groups, executables)
        weights = dict(itertools.chain(weights.items(), *(adapters.items() for adapters in self._state.adapters)))
        self._weights: list[jax.Array] = jax.tree.leaves(weights)
        self._places = {name: place for place, name in enumerate(sorted(weights))}  # among the leaves
        self._tables = PageTables(shapes)
        self._layer_groups = layer_groups
        self._groups = [
            LayerGroupState(
                *(group.kind, group.layers, [weights[name] for name in group.weights], cache),
                None
                if shapes.taps is None
                else jax.device_put(taps_in(group.layers, shapes.taps), self._state.replicated),
            )
            for group, cache in zip(layer_groups, self._state.caches, strict=True)
        ]
        # On every device already, so that a step without a restriction sends no masks.
        self._unrestricted = {
            count: jax.device_put(unrestricted_mask(count, self._state.vocab_size), self._state.replicated)
            for count in shapes.sample_counts
        }

    def dispatch(self, plan: Plan, read_previous: Callable[[], None] = lambda: None) -> "StepResult | EncodedPart":
        """Start a plan's step and its sampling, and return at once.

        Args:
            plan: the step.
            read_previous: called while the step runs, before a sampling that depends on the previous step's tokens.
        """
        for write in plan.writes:
            self.write_adapter(write.slot, write.adapter)
        if plan.part is not None:
            return self.encode(plan.part)
        step = pack(plan, self._executables.available, self.shapes, self._tables)
        if step.best_bucket != step.bucket:
            self._executables.prefer(step.best_bucket)
        return self.run(step, read_previous)

    def run(self, step: PackedStep, read_previous: Callable[[], None] = lambda: None) -> StepResult:
        """Start a packed step and its sampling, and return at once; see `dispatch`."""
        if step.sampler not in (None, Sampler.GENERAL) and step.bucket.num_rows == 0:
            sampled = self.decode(step.bucket, step.inputs, step.sampler)
            _begin_copy(step, sampled)
            return StepResult(step, sampled)
        heads = functools.partial(pack_heads, step) if step.wants_attention else None
        outputs = self.run_model(step.bucket, step.inputs, heads)
        sampled = None
        if step.sampler is not None:
            if step.options is not None:
                self._run(SingleProgram.SET_OPTIONS, step.options)
            for count in step.counts:
                self._run(SingleProgram.COUNT_TOKENS, count)
            if step.is_constrained:
                read_previous()
            token_mask = pack_token_masks(step, self._unrestricted[step.bucket.num_seqs])
            sampled = self.sample(outputs, step.sampler, token_mask, step.drafted)
            _begin_copy(step, sampled)
        memory_len = 0 if self.shapes.memory is None else self.shapes.memory.length
        prompt_logprobs = self._prompt_logprobs(step, outputs.hidden)
        return StepResult(step, sampled, outputs.hidden, prompt_logprobs, outputs.scores, memory_len)

    def write_adapter(self, slot: int, adapter: Adapter) -> None:
        """Start the writing of an adapter into a slot; steps that are in flight still read what was there."""
        of_groups = zip(self._layer_groups, self._groups, self.adapter_slots, adapter.arrays, strict=True)
        for group, state, slots, arrays in of_groups:
            if not arrays:
                continue
            self._executables[WriteAdapter(group.kind)]((), slots, AdapterInputs(scalar(slot), arrays))
            for name, array in zip(group.adapters, slots, strict=True):
                state.weights[group.weights.index(name)] = self._weights[self._places[name]] = array

    def encode(self, part: EncoderPart) -> "EncodedPart":
        """Start a part of an encoding: some layers of the encoder, after which the last part keeps the output."""
        hidden, medium, media = self._encoded, part.memory.medium, self.shapes.media
        num_rows = 0 if media is None else media.padded(medium.num_rows)
        if part.number == 0:
            begin = self._executables[OfEncoder(EncoderStage.BEGIN, num_rows=num_rows)]
            hidden = begin(self._weights, [], medium.features)
        group = self._encoder_groups[part.number]
        run = self._executables[OfEncoder(EncoderStage.LAYERS, group.kind, num_rows)]
        self._encoded = hidden = run(group.weights, [], hidden)
        if not part.is_last:
            return EncodedPart(hidden)
        self._encoded = None
        if media is not None:
            places = np.full(media.places_for(num_rows), media.num_places, np.int32)  # which writes nothing
            places[: len(part.memory.pages)] = part.memory.pages
            keep = self._executables[OfEncoder(EncoderStage.KEEP, num_rows=num_rows)]
            return EncodedPart(keep(self._weights, self._state.rows, KeepInputs(hidden, places)))
        output = self._executables[OfEncoder(EncoderStage.END)](self._weights, [], hidden)
        inputs = RememberInputs(output, np.array(part.memory.pages, np.int32))
        done = [
            self._executables[OfMemory(MemoryPart.REMEMBER, g.kind)](g.weights, g.cache, inputs) for g in self._groups
        ]
        return EncodedPart(done[-1])

    def run_model(
        self,
        bucket: Bucket,
        inputs: StepInputs,
        heads: Callable[[range], Int[np.ndarray, "layer head"]] | None = None,
    ) -> ModelOutputs:
        """Start the model's part of a step.

        Args:
            bucket: the shape of the step.
            inputs: the host's part of it.
            heads: returns those of some layers whose scores are wanted; None if none are.
        """
        if self.shapes.has_whole_steps and bucket.num_rows == 0:
            hidden, sampled, *_ = self._run_whole(Hidden(bucket), inputs)
            return ModelOutputs(hidden, hidden, sampled)
        layers, places, sampled, per_layer = self._embed(bucket, inputs)
        hidden, last = layers.hidden, None
        scores: list[tuple[range, Float[Array, "layer head prompt_token position"]]] = []
        for number, group in enumerate(self._groups):
            if per_layer:
                layers = layers._replace(per_layer=per_layer[number])
            of_group = StepGroupInputs(layers, places, group.taps)
            if heads is None:
                executable = self._executables[Layers(bucket, group.kind, has_media=layers.added is not None)]
                cache = self._shared_cache(number) or group.cache
                hidden, last = self._state.run_layers(executable, group.weights, cache, of_group)
            else:
                attend = self._executables[OfMemory(MemoryPart.ATTEND, group.kind)]
                (hidden, last), of_heads = attend(
                    group.weights, group.cache, AttendInputs(of_group, heads(group.layers))
                )
                scores.append((group.layers, of_heads))
            layers = layers._replace(hidden=hidden, added=None)
        return ModelOutputs(hidden, hidden if last is None else last, sampled, tuple(scores))

    def _shared_cache(self, number: int) -> list[jax.Array]:
        """Return the arrays that a group of layers reads in place of a cache of its own; none of most groups."""
        leaves = []
        for shared in self._layer_groups[number].shared:
            cache, num_layers = self._groups[shared.group].cache, len(self._groups[shared.group].layers)
            each = len(cache) // num_layers
            leaves += cache[shared.layer * each : (shared.layer + 1) * each]
        return leaves

    def _embed(self, bucket: Bucket, inputs: StepInputs) -> Embedded:
        if inputs.media_rows is None:
            return self._run(Embed(bucket), inputs.to_embed())
        [rows] = self._state.rows
        return self._run(Embed(bucket, has_media=True), inputs.to_embed(rows))

    def sample(
        self,
        outputs: ModelOutputs,
        sampler: Sampler,
        token_mask: HostOrDevice | None = None,
        drafted: Drafted | None = None,
    ) -> Sampled:
        """Start the sampling of the tokens that follow a step.

        Args:
            outputs: the outputs of the step.
            sampler: the one that suffices; one that does more is used until that is compiled.
            token_mask: one row per slot, or per token of a step that verifies drafts; None for no restriction.
            drafted: of such a step.
        """
        count = len(outputs.last)
        if drafted is not None:
            return self._verify(outputs, sampler, token_mask, drafted)
        if Sample(sampler, count) not in sample_keys(self.shapes, count):
            sampler = Sampler.GENERAL
        elif not self._executables.is_usable(Sample(sampler, count)) and sampler is not Sampler.GENERAL:
            sampler = usual_sampler(self.shapes)
        if sampler is not Sampler.GENERAL:
            token_mask = None
        elif token_mask is None:
            token_mask = self._unrestricted[count]
        return self._run(Sample(sampler, count), SampleInputs(outputs.last, outputs.sampled, token_mask))

    def _verify(
        self, outputs: ModelOutputs, sampler: Sampler, token_mask: HostOrDevice | None, drafted: Drafted
    ) -> Sampled:
        key = Verify(Sampler.GENERAL if sampler is Sampler.GENERAL else usual_sampler(self.shapes))
        if key.sampler is not Sampler.GENERAL:
            token_mask = None
        elif token_mask is None:
            token_mask = self._unrestricted[len(outputs.last)]
        return self._run(key, SampleInputs(outputs.last, outputs.sampled, token_mask, drafted))

    def decode(self, bucket: Bucket, inputs: StepInputs, sampler: Sampler) -> Sampled:
        """Start a decode step and its sampling without masks: as one program, where there is one."""
        if self.shapes.has_whole_steps and sampler is not Sampler.GENERAL:
            for whole in (Whole(sampler, bucket), Whole(usual_sampler(self.shapes), bucket)):
                if self._executables.is_usable(whole):
                    return self._run_whole(whole, inputs)
        return self.sample(self.run_model(bucket, inputs), sampler)

    def _run_whole(self, key: Whole | Hidden, inputs: StepInputs) -> Any:
        return self._state.run_whole(self._executables[key], self._weights, inputs.to_embed())

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

    @property
    def product_weights(self) -> list[jax.Array]:
        """The weights that every decode step reads: those of the layers, and that of the logits.

        Empty for a model with experts, of which a step reads those that its tokens are sent to.
        """
        if any("expert" in name for group in self._layer_groups for name in group.weights):
            return []
        layers = [
            array
            for group, state in zip(self._layer_groups, self._groups, strict=True)
            for name, array in zip(group.weights, state.weights, strict=True)
            if name not in group.adapters
        ]
        return [*layers, *([] if self._unembed is None else [self._unembed])]

    @property
    def adapter_slots(self) -> list[list[jax.Array]]:
        """The arrays of the slots of adapters, of each layer group in the order of `LayerGroup.adapters`."""
        return [
            [state.weights[group.weights.index(name)] for name in group.adapters]
            for group, state in zip(self._layer_groups, self._groups, strict=True)
        ]

    def delete_state(self) -> None:
        """Free the slots and the caches; the runner cannot be used afterwards."""
        state = self._state
        of_drafts = (*state.features, *state.draft_cache)
        for array in itertools.chain(state.slots, *state.caches, state.rows, of_drafts, *self.adapter_slots):
            array.delete()

    @property
    def state(self) -> DeviceState:
        """The state on the device, which each step replaces in part."""
        return self._state

    def cache_leaves(self) -> list[jax.Array]:
        """Return the arrays of all caches, as they are after the last dispatched step."""
        return [leaf for cache in self._state.caches for leaf in cache]

    def padded_steps(self) -> Iterator[Callable[[], None]]:
        """Yield calls that together run every executable once on padding; they may run between other steps."""
        for bucket in self.shapes.buckets_in_parts:
            yield functools.partial(self._run_padded, bucket)
        for key in whole_keys(self.shapes):
            yield functools.partial(self._run_padded_whole, key)
        yield self._run_padded_rest
        if self._encoder_groups:
            yield self._run_padded_encoder

    def warm(self) -> None:
        """Run every executable once on padding, and wait; the first call of one loads it onto the device."""
        for run in self.padded_steps():
            run()

    def _run_padded(self, bucket: Bucket) -> None:
        outputs = self.run_model(bucket, empty_step(bucket, self.shapes))
        for key in sample_keys(self.shapes, bucket.num_seqs):
            jax.block_until_ready(self.sample(outputs, key.sampler))
        if bucket == min(self.shapes.prompt_buckets):
            for verify in verify_keys(self.shapes):
                of_none = no_drafts(bucket.num_seqs)
                jax.block_until_ready(self.sample(outputs, verify.sampler, drafted=of_none))

    def _run_padded_whole(self, key: Whole | Hidden) -> None:
        sampler = key.sampler if isinstance(key, Whole) else Sampler.GENERAL
        for _ in range(RUNS_TO_RECORD):
            jax.block_until_ready(self.decode(key.bucket, empty_step(key.bucket, self.shapes), sampler))

    def _run_padded_rest(self) -> None:
        """Set the options and count the tokens of no slot, and score the tokens of no prompt."""
        options = empty_options(self.shapes.row_counts[-1], self.shapes)
        self._run(SingleProgram.SET_OPTIONS, options)
        self._run(SingleProgram.COUNT_TOKENS, empty_count(self.shapes))
        widest = max(self.shapes.decode_buckets)
        hidden = np.asarray(self.run_model(widest, empty_step(widest, self.shapes)).last)
        jax.block_until_ready(
            self._run(SingleProgram.PROMPT_LOGPROBS, PromptInputs(hidden, np.zeros(len(hidden), np.int32)))
        )

        if self.shapes.adapters is not None:
            arrays = tuple(
                tuple(np.zeros(array.shape[1:], array.dtype) for array in slots) for slots in self.adapter_slots
            )
            self.write_adapter(self.shapes.adapters.num_slots, Adapter("", b"", arrays))  # which is no slot

    def _run_padded_encoder(self) -> None:
        """Encode nothing into no place, and take it for no token, or look at what no token attends to."""
        shapes = self.shapes
        if shapes.media is None:
            assert shapes.memory is not None
            self._run_padded_attention()
            medium = Medium(b"", np.zeros(shapes.memory.medium, np.float32))
            self._encode_padding(Memory(medium, b"", [shapes.num_pages] * shapes.memory_pages, 0))
            return
        for num_rows in shapes.media.num_rows:
            medium = Medium(b"", _any_features(shapes.media, num_rows), num_rows)
            self._encode_padding(Memory(medium, b"", [], 0))
        for bucket in shapes.prompt_buckets:
            step = empty_step(bucket, shapes)
            jax.block_until_ready(self.run_model(bucket, with_media(step, shapes.media)).last)

    def _encode_padding(self, memory: Memory) -> None:
        count = len(self._encoder_groups)
        for number in range(count):
            jax.block_until_ready(self.encode(EncoderPart(memory, number, number == count - 1)).output)

    def _run_padded_attention(self) -> None:
        bucket = max(self.shapes.prompt_buckets)

        def no_heads(layers: range) -> Int[np.ndarray, "layer head"]:
            return np.zeros((len(layers), MAX_ATTENTION_HEADS), np.int32)

        jax.block_until_ready(self.run_model(bucket, empty_step(bucket, self.shapes), no_heads).last)

    def _run(self, key: ProgramKey, inputs: Any) -> Any:
        """Start a program that updates the slots, and return its outputs at once."""
        return self._executables[key](self._weights, self._state.slots, inputs)

    def _prompt_logprobs(
        self, step: PackedStep, hidden: Float[Array, "token hidden"]
    ) -> tuple[Int[Array, "position packed"], ...]:
        """Start the log-probabilities of the targets of a step's prompts."""
        if not any(step.prompt_targets):
            return ()  # without waiting for the hidden states
        parts = pack_prompts(step, np.asarray(hidden), self.shapes.num_slots)
        return tuple(self._run(SingleProgram.PROMPT_LOGPROBS, part) for part in parts)


def _any_features(media: RowShapes, num_rows: int) -> Any:
    """Return features of a medium, as the encoder takes them."""
    if not media.has_any_shape:
        return np.zeros(media.features, np.uint8)
    patches, values = media.features
    return np.zeros((num_rows * patches, values), np.uint8), np.ones(2, np.int32)


def _begin_copy(step: PackedStep, sampled: Sampled) -> None:
    """Have what will be read copied to the host as soon as it exists, rather than when it is read."""
    sampled.token_ids.copy_to_host_async()
    if step.has_logprobs and sampled.logprobs is not None:
        sampled.logprobs.copy_to_host_async()
