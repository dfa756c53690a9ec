"""The programs of a runner: each compiled function with its name and its shapes."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from service.compile.program import Program
from service.engine.limits import MAX_ATTENTION_HEADS
from service.engine.shapes import Bucket, EngineShapes
from service.engine.steps.draft import Drafting
from service.engine.steps.encode import (
    AttendInputs,
    KeepInputs,
    RememberInputs,
    attend_layer_group,
    embed_media,
    encode_begin,
    encode_end,
    encode_layers,
    initial_rows,
    keep_rows,
    remember,
)
from service.engine.steps.features import Features, initial_features
from service.engine.steps.inputs import (
    AdapterInputs,
    PromptInputs,
    SampleInputs,
    empty_count,
    empty_options,
    empty_step,
    in_windows,
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
    WriteAdapter,
    distinct,
    sample_keys,
    samplers,
    verify_keys,
    whole_keys,
)
from service.engine.steps.sampling import (
    Sampled,
    SamplingState,
    choose_likeliest,
    choose_randomly,
    sample_by_branches,
    sample_with_everything,
)
from service.engine.steps.sharding import placed, placement_of
from service.engine.steps.step import (
    SlotState,
    StepGroupInputs,
    count_step,
    embed_tokens,
    initial_slots,
    prompt_logprobs_step,
    run_layer_group,
    sample_step,
    set_options,
    write_adapter,
)
from service.engine.steps.whole import SampleStep, WholeState, WholeSteps
from service.models.interface import (
    Cache,
    HasLayerInputs,
    LayerGroup,
    LayerGroupInputs,
    MediaEncoder,
    PagedDecoder,
    TakesMedia,
)

type SampleFunction = Callable[[Float[Array, "slot vocab"], SamplingState, Any], Sampled]


def engine_programs(
    model: PagedDecoder,
    shapes: EngineShapes,
    weight_shapes: Mapping[str, jax.ShapeDtypeStruct],
    drafting: Drafting | None = None,
) -> list[Program]:
    """Return all programs that a runner of these shapes needs.

    Args:
        model: the model.
        shapes: the sizes of the engine.
        weight_shapes: the weights, by name.
        drafting: what drafts beside the model, whose cache is made with the others; None for nothing.
    """
    programs = _EnginePrograms(model, shapes, weight_shapes, drafting)
    steps = [*programs.embeds(), *programs.sampling(), *programs.layer_groups(), *programs.whole()]
    return [programs.initial(), *steps, *programs.encoding(), *programs.attending(), *programs.adapter_writes()]


class _EnginePrograms:
    def __init__(
        self,
        model: PagedDecoder,
        shapes: EngineShapes,
        weight_shapes: Mapping[str, jax.ShapeDtypeStruct],
        drafting: Drafting | None,
    ) -> None:
        self._model, self._shapes, self._weights, self._drafting = model, shapes, weight_shapes, drafting
        self._place = placement_of(model)
        self._embedded = functools.cache(self._embed_shapes)
        self._per_layer = functools.cache(self._per_layer_shapes)
        self._make_slots = functools.partial(initial_slots, model.vocab_size, shapes)
        self._slots = placed(jax.eval_shape(self._make_slots), self._place.replicated)

    def initial(self) -> Program:
        """Return the program that makes the device state."""
        groups = self._model.layer_groups

        def make(_: Any, none: Any, __: Any) -> tuple[Any, Any]:
            adapters = [[jnp.zeros(a.shape, a.dtype) for a in self._adapters_of(group)] for group in groups]
            rows = () if self._shapes.media is None else self._make_rows()
            drafts = None if self._drafting is None else self._drafting.make_caches(self._shapes)
            caches = tuple(map(self._make_cache, groups))
            return none, (self._make_slots(), caches, adapters, rows, self._make_features(), drafts)

        replicated, is_split = self._place.replicated, self._place.caches is not None
        of_adapters = [[a.sharding if is_split else None for a in self._adapters_of(group)] for group in groups]
        of_drafts = None if self._drafting is None else self._drafting.place.caches
        shardings = (replicated, self._place.caches, of_adapters, replicated, replicated, of_drafts)
        return Program(str(SingleProgram.INITIAL_STATE), make, outputs_sharding=shardings)

    def embeds(self) -> list[Program]:
        """Return the programs before the first layer group of a step."""
        return [self._embed(bucket) for bucket in self._shapes.buckets_in_parts]

    def _embed(self, bucket: Bucket) -> Program:
        step = empty_step(bucket, self._shapes)
        ahead = np.zeros(step.token_ids.shape, np.int32) if self._looks_ahead(bucket) else None
        has_adapters = self._shapes.adapters is not None
        embed = functools.partial(embed_tokens, self._model, bucket, has_adapters=has_adapters, ahead=ahead)
        return self._of_slots(Embed(bucket), embed, step.to_embed())

    def _looks_ahead(self, bucket: Bucket) -> bool:
        """Return whether tokens of a step's prompts may see positions after their own."""
        return self._shapes.media is not None and self._shapes.media.is_whole and bucket.num_rows > 0

    def sampling(self) -> list[Program]:
        """Return the programs from hidden states to tokens and log-probabilities."""
        shapes = self._shapes
        options = empty_options(shapes.row_counts[-1], shapes)
        prompt = PromptInputs(self._hidden(shapes.num_slots), _int32(shapes.num_slots))
        prompt_logprobs = functools.partial(prompt_logprobs_step, self._model)
        return [
            *(self._sample(key) for count in shapes.sample_counts for key in sample_keys(shapes, count)),
            *map(self._verify, verify_keys(shapes)),
            self._of_slots(SingleProgram.PROMPT_LOGPROBS, prompt_logprobs, prompt),
            self._of_slots(SingleProgram.SET_OPTIONS, set_options, options),
            self._of_slots(SingleProgram.COUNT_TOKENS, count_step, empty_count(shapes)),
        ]

    def _sample(self, key: Sample) -> Program:
        is_general = key.sampler is Sampler.GENERAL
        masks = unrestricted_mask(key.num_seqs, self._model.vocab_size) if is_general else None
        inputs = SampleInputs(self._hidden(key.num_seqs), _int32(key.num_seqs), masks)
        return self._of_slots(key, self._sample_with(key.sampler), inputs)

    def _verify(self, key: Verify) -> Program:
        count = self._shapes.num_samples
        masks = unrestricted_mask(count, self._model.vocab_size) if key.sampler is Sampler.GENERAL else None
        inputs = SampleInputs(self._hidden(count), _int32(count), masks, no_drafts(count))
        can_branch = not self._shapes.has_sampling_variants
        return self._of_slots(key, self._sample_with(key.sampler, can_branch=can_branch), inputs)

    def _sample_with(self, sampler: Sampler, *, can_branch: bool = False) -> SampleStep:
        """Return the function that samples from hidden states."""
        is_greedy = sampler is Sampler.GREEDY  # of its part of the logits a device needs the maximum and its index
        return functools.partial(
            sample_step, self._model, self._samplers[sampler], stays_split=is_greedy, can_branch=can_branch
        )

    @property
    def _samplers(self) -> Mapping[Sampler, SampleFunction]:
        """The functions of the samplers that are compiled."""
        functions: Mapping[Sampler, SampleFunction] = {
            Sampler.GENERAL: sample_with_everything if self._shapes.has_sampling_variants else sample_by_branches,
            Sampler.TOP_P: lambda logits, state, _: Sampled(choose_randomly(logits, state, has_limits=True)),
            Sampler.RANDOM: lambda logits, state, _: Sampled(choose_randomly(logits, state, has_limits=False)),
            Sampler.GREEDY: lambda logits, state, _: Sampled(choose_likeliest(logits, state)),
        }
        return {sampler: functions[sampler] for sampler in samplers(self._shapes)}

    def whole(self) -> list[Program]:
        """Return the decode steps that are one program each, where the device prefers those."""
        shapes = self._shapes
        steps = WholeSteps(self._model, has_adapters=shapes.adapters is not None, taps=shapes.taps)
        makes = (functools.partial(self._make_cache, group) for group in self._model.layer_groups)
        caches = placed(tuple(jax.eval_shape(make) for make in makes), self._place.caches)
        programs = []
        for key in whole_keys(self._shapes):
            inputs = empty_step(key.bucket, self._shapes).to_embed()
            arguments = (self._weights, WholeState(self._slots, caches, self._feature_shapes), inputs)
            if isinstance(key, Hidden):
                run = functools.partial(steps.run_model, key.bucket)
            else:
                run = functools.partial(steps.run, self._sample_with(key.sampler), key.bucket)
            programs.append(self._program(key, run, arguments))
        return programs

    def encoding(self) -> list[Program]:
        """Return the programs that encode a medium, and those that take its output; none without an encoder."""
        model = self._model
        if not isinstance(model, TakesMedia):
            return []
        sizes = (0,) if self._shapes.media is None else self._shapes.media.num_rows
        programs = [
            program
            for num_rows in sizes
            if (encoder := model.encoder_of(num_rows)) is not None
            for program in self._encoding(model, encoder, num_rows)
        ]
        return programs if self._shapes.media is None else [*programs, *self._seeing()]

    def _encoding(self, model: TakesMedia, encoder: MediaEncoder, num_rows: int) -> Iterator[Program]:
        """Yield the programs that encode media of one size, and keep or remember their output."""
        hidden = jax.eval_shape(encoder.begin, self._weights, encoder.features)
        begin = functools.partial(encode_begin, encoder)
        key = OfEncoder(EncoderStage.BEGIN, num_rows=num_rows)
        yield self._program(key, begin, (self._weights, (), encoder.features))
        for group in distinct(encoder.layer_groups):
            run = functools.partial(encode_layers, encoder, group)
            key = OfEncoder(EncoderStage.LAYERS, group.kind, num_rows)
            yield self._program(key, run, (self._of(group), (), hidden))
        if self._shapes.media is None:
            end = functools.partial(encode_end, encoder)
            yield self._program(OfEncoder(EncoderStage.END, num_rows=num_rows), end, (self._weights, (), hidden))
            yield from self._remembering(model, jax.eval_shape(encoder.end, self._weights, hidden))
        else:
            places = _int32(self._shapes.media.places_for(num_rows))
            keep = functools.partial(keep_rows, encoder)
            key = OfEncoder(EncoderStage.KEEP, num_rows=num_rows)
            yield self._program(key, keep, (self._weights, self._row_shapes, KeepInputs(hidden, places)))

    def _remembering(self, model: TakesMedia, output: jax.ShapeDtypeStruct) -> Iterator[Program]:
        """Yield the programs that write an encoder's output into the cache."""
        written = RememberInputs(output, _int32(self._shapes.memory_pages))
        for group in distinct(self._model.layer_groups):
            yield self._program(
                OfMemory(MemoryPart.REMEMBER, group.kind),
                functools.partial(remember, model, group),
                (self._of(group), self._placed_cache(group), written),
            )

    def _seeing(self) -> Iterator[Program]:
        """Yield the programs that take rows for tokens, and add to the hidden states of the first layers."""
        assert self._shapes.media is not None
        for bucket in self._shapes.prompt_buckets:
            step = empty_step(bucket, self._shapes)
            inputs = with_media(step, self._shapes.media).to_embed(self._row_shapes)
            has_adapters = self._shapes.adapters is not None
            begin = functools.partial(embed_media, self._model, bucket, has_adapters=has_adapters)
            yield self._of_slots(Embed(bucket, has_media=True), begin, inputs)
            if self._shapes.media.num_added:
                first = self._model.layer_groups[0]
                own, added = self._group_inputs(bucket), self._shapes.media.num_added
                added = self._hidden(added, self._shapes.padding(bucket))
                yield self._of_group(first, bucket, own._replace(layers=own.layers._replace(added=added)))

    @property
    def _row_shapes(self) -> jax.ShapeDtypeStruct:
        return placed(jax.eval_shape(self._make_rows), self._place.replicated)

    def _make_rows(self) -> Float[Array, "place row level hidden"]:
        assert self._shapes.media is not None
        return initial_rows(self._shapes.media, self._model.hidden_size, self._model.dtype)

    def attending(self) -> list[Program]:
        """Return the programs that return what heads attend to; none of a model that does not attend to an encoder."""
        model = self._model
        if not isinstance(model, TakesMedia) or self._shapes.memory is None:
            return []
        step = self._group_inputs(max(self._shapes.prompt_buckets))
        return [
            self._program(
                OfMemory(MemoryPart.ATTEND, group.kind),
                functools.partial(attend_layer_group, model, group),
                (
                    self._of(group),
                    self._placed_cache(group),
                    AttendInputs(step, _int32(len(group.layers), MAX_ATTENTION_HEADS)),
                ),
            )
            for group in distinct(model.layer_groups)
        ]

    def adapter_writes(self) -> list[Program]:
        """Return the programs that write adapters into slots; none of an engine without slots."""
        return [
            self._program(
                WriteAdapter(group.kind),
                write_adapter,
                ((), arrays, AdapterInputs(scalar(0), tuple(_without_slots(array) for array in arrays))),
            )
            for group in distinct(self._model.layer_groups)
            if (arrays := self._adapters_of(group))
        ]

    def _adapters_of(self, group: LayerGroup) -> list[jax.ShapeDtypeStruct]:
        return [self._weights[name] for name in group.adapters]

    def _of(self, group: LayerGroup) -> list[jax.ShapeDtypeStruct]:
        return [self._weights[name] for name in group.weights]

    def layer_groups(self) -> list[Program]:
        """Return the programs that run layers."""
        return [
            self._of_group(group, bucket, self._group_inputs(bucket))
            for group in distinct(self._model.layer_groups)
            for bucket in self._shapes.buckets_in_parts
        ]

    def _of_group(self, group: LayerGroup, bucket: Bucket, inputs: StepGroupInputs) -> Program:
        cache = self._placed_cache(group)
        per_layer = self._per_layer(self._shapes.padding(bucket))
        if per_layer:
            of_group = per_layer[self._model.layer_groups.index(group)]
            inputs = inputs._replace(layers=inputs.layers._replace(per_layer=of_group))
        run = functools.partial(run_layer_group, self._model, group)
        key = Layers(bucket, group.kind, has_media=inputs.layers.added is not None)
        if self._shapes.taps is not None:
            inputs = inputs._replace(taps=_int32(len(self._shapes.taps)))
        return self._program(key, run, (self._of(group), (cache, self._feature_shapes), inputs))

    def _make_features(self) -> Features | None:
        return None if self._shapes.taps is None else initial_features(self._model, self._shapes)

    @property
    def _feature_shapes(self) -> Any:
        return placed(jax.eval_shape(self._make_features), self._place.replicated)

    def _make_cache(self, group: LayerGroup) -> Cache:
        return self._model.initial_cache(self._shapes.layout, group)

    def _placed_cache(self, group: LayerGroup) -> Cache:
        number, caches = self._model.layer_groups.index(group), self._place.caches
        return placed(self._cache_shapes(group), None if caches is None else caches[number])

    def _cache_shapes(self, group: LayerGroup) -> Cache:
        if group.shared:
            groups = self._model.layer_groups
            return tuple(self._cache_shapes(groups[shared.group])[shared.layer] for shared in group.shared)
        return jax.eval_shape(functools.partial(self._make_cache, group))

    def _group_inputs(self, bucket: Bucket) -> StepGroupInputs:
        """Return the shapes of a layer group's inputs; those that depend on the model come from its `embed`."""
        step = empty_step(bucket, self._shapes)
        hidden, rotation = self._embedded(self._shapes.padding(bucket))
        adapters = None if self._shapes.adapters is None else _int32(self._shapes.padding(bucket))
        regions = step.regions
        memory = None if step.memory_table is None else regions.with_page_table(step.memory_table)
        if self._looks_ahead(bucket):
            ahead = _int32(*step.token_ids.shape)
            regions = regions._replace(prompts=regions.prompts._replace(ahead=ahead))
        windows = in_windows(regions, step.windows)
        layers = LayerGroupInputs(hidden, rotation, regions, memory, adapters=adapters, windows=windows)
        return StepGroupInputs(layers, step.places if bucket.num_rows else None)

    def _embed_shapes(self, num_tokens: int) -> tuple[Any, Any]:
        tokens = _int32(num_tokens)
        return jax.eval_shape(self._model.embed, self._weights, tokens, tokens)  # by whichever positions

    def _per_layer_shapes(self, num_tokens: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        if not isinstance(self._model, HasLayerInputs):
            return ()
        hidden, _ = self._embedded(num_tokens)
        return jax.eval_shape(self._model.per_layer_inputs, self._weights, _int32(num_tokens), hidden)

    def _hidden(self, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*shape, self._model.hidden_size), self._model.dtype)

    def _of_slots(self, key: ProgramKey, function: Callable[..., tuple[SlotState, Any]], inputs: Any) -> Program:
        return self._program(key, function, (self._weights, self._slots, inputs))

    def _program(
        self, key: ProgramKey, function: Callable[..., tuple[Any, Any]], arguments: tuple[Any, Any, Any]
    ) -> Program:
        constants, state, inputs = arguments
        shaped = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), inputs)
        return Program(str(key), function, constants, state, shaped, self._place.replicated, self._place.replicated)


def _without_slots(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)
