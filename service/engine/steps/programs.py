"""The programs of a runner: each compiled function with its name and its shapes."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from service.compile.program import Program
from service.engine.shapes import Bucket, EngineShapes
from service.engine.steps.inputs import (
    AdjustInputs,
    ChooseInputs,
    LogprobInputs,
    SampleTargets,
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
    distinct,
    sampling_parts,
)
from service.engine.steps.sampling import choose_likeliest, choose_randomly, choose_tokens
from service.engine.steps.sharding import placed, placement_of
from service.engine.steps.step import (
    SlotState,
    adjust_step,
    choose_step,
    count_step,
    embed_tokens,
    initial_slots,
    logits_step,
    logprobs_step,
    run_layer_group,
    set_options,
)
from service.engine.steps.whole import WholeInputs, WholeState, WholeSteps
from service.models.interface import Cache, LayerGroup, LayerGroupInputs, PagedDecoder


def engine_programs(
    model: PagedDecoder, shapes: EngineShapes, weight_shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> list[Program]:
    """Return all programs that a runner of these shapes needs."""
    programs = _EnginePrograms(model, shapes, weight_shapes)
    return [*programs.initial(), *programs.embeds(), *programs.sampling(), *programs.layer_groups(), *programs.whole()]


class _EnginePrograms:
    def __init__(
        self, model: PagedDecoder, shapes: EngineShapes, weight_shapes: Mapping[str, jax.ShapeDtypeStruct]
    ) -> None:
        self._model, self._shapes, self._weights = model, shapes, weight_shapes
        self._place = placement_of(model)
        self._embedded = functools.cache(self._embed_shapes)
        self._make_slots = functools.partial(initial_slots, model.vocab_size, shapes)
        self._slots = placed(jax.eval_shape(self._make_slots), self._place.replicated)

    def initial(self) -> list[Program]:
        """Return the programs that make the device state."""
        caches = [
            self._maker(InitialCache(group.kind), functools.partial(self._make_cache, group), self._place.cache)
            for group in distinct(self._model.layer_groups)
        ]
        return [self._maker(SlotProgram.INITIAL_SLOTS, self._make_slots, self._place.replicated), *caches]

    def embeds(self) -> list[Program]:
        """Return the programs before the first layer group of a step."""
        return [
            self._of_slots(
                Embed(kind, bucket),
                functools.partial(embed_tokens, self._model, kind),
                empty_step(bucket, self._shapes).packed,
            )
            for kind, bucket in self._shapes.buckets
        ]

    def sampling(self) -> list[Program]:
        """Return the programs from hidden states to tokens and log-probabilities."""
        options = empty_options(self._shapes.prefill_seqs[-1], self._shapes)
        return [
            *(program for num_seqs in self._shapes.all_seq_counts for program in self._sampling_of(num_seqs)),
            self._of_slots(SlotProgram.SET_OPTIONS, set_options, options),
            self._of_slots(SlotProgram.COUNT_TOKENS, count_step, empty_count(self._shapes)),
        ]

    def _sampling_of(self, num_seqs: int) -> list[Program]:
        logits = jax.ShapeDtypeStruct((num_seqs, self._model.vocab_size), np.float32)
        token_ids = _int32(num_seqs)
        targets = SampleTargets(token_ids, token_ids)
        masks = unrestricted_mask(num_seqs, self._model.vocab_size)
        adjust = functools.partial(adjust_step, not self._shapes.has_sampling_variants)
        choice = ChooseInputs(logits, targets)
        parts: dict[SamplingPart, tuple[Callable[..., Any], Any]] = {
            SamplingPart.LOGITS: (functools.partial(logits_step, self._model), self._hidden(num_seqs, 1)),
            SamplingPart.ADJUST: (adjust, AdjustInputs(logits, targets, masks)),
            **{part: (functools.partial(choose_step, choose), choice) for part, choose in self._choices.items()},
            SamplingPart.LOGPROBS: (logprobs_step, LogprobInputs(logits, token_ids)),
        }
        return [self._of_slots(Sample(part, num_seqs), *parts[part]) for part in sampling_parts(self._shapes)]

    @property
    def _choices(self) -> Mapping[SamplingPart, Callable[..., Any]]:
        """The functions that choose tokens, of which a step runs one."""
        has_variants = self._shapes.has_sampling_variants
        choices: Mapping[SamplingPart, Callable[..., Any]] = {
            SamplingPart.CHOOSE: functools.partial(choose_randomly, has_limits=True) if has_variants else choose_tokens,
            SamplingPart.GREEDY: choose_likeliest,
            SamplingPart.RANDOM: functools.partial(choose_randomly, has_limits=False),
        }
        return {part: choices[part] for part in choice_parts(self._shapes)}

    def whole(self) -> list[Program]:
        """Return the decode steps that are one program each, where the device prefers those."""
        if not self._shapes.has_whole_steps:
            return []
        steps = WholeSteps(self._model)
        caches = tuple(placed(self._cache_shapes(group), self._place.cache) for group in self._model.layer_groups)
        programs = []
        for bucket in self._shapes.decode_grid:
            inputs = empty_step(bucket, self._shapes)
            arguments = (self._weights, WholeState(self._slots, caches), WholeInputs(inputs.packed, inputs.page_table))
            programs += [
                self._program(Whole(part, bucket), functools.partial(steps.run, choose), arguments)
                for part, choose in self._choices.items()
            ]
        return programs

    def layer_groups(self) -> list[Program]:
        """Return the programs that run layers."""
        return [program for group in distinct(self._model.layer_groups) for program in self._of_group(group)]

    def _of_group(self, group: LayerGroup) -> list[Program]:
        weights = [self._weights[name] for name in group.weights]
        cache = placed(self._cache_shapes(group), self._place.cache)
        return [
            self._program(
                Layers(kind, bucket, group.kind),
                functools.partial(run_layer_group, self._model, group),
                (weights, cache, self._group_inputs(bucket)),
            )
            for kind, bucket in self._shapes.buckets
        ]

    def _make_cache(self, group: LayerGroup) -> Cache:
        return self._model.initial_cache(self._shapes.layout, group)

    def _cache_shapes(self, group: LayerGroup) -> Cache:
        return jax.eval_shape(functools.partial(self._make_cache, group))

    def _group_inputs(self, bucket: Bucket) -> LayerGroupInputs:
        """Return the shapes of a layer group's inputs; those that depend on the model come from its `embed`."""
        hidden, rotation = self._embedded(bucket.num_seqs, bucket.num_tokens)
        return LayerGroupInputs(hidden, rotation, empty_step(bucket, self._shapes).paging)

    def _embed_shapes(self, num_seqs: int, num_tokens: int) -> tuple[Any, Any]:
        tokens = _int32(num_seqs, num_tokens)
        return jax.eval_shape(self._model.embed, self._weights, tokens, tokens)

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

    def _maker(self, key: ProgramKey, make: Callable[[], Any], sharding: Any) -> Program:
        def run(_: Any, none: Any, __: Any) -> tuple[Any, Any]:
            return none, make()

        return Program(str(key), run, outputs_sharding=sharding)


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)
