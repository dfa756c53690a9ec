"""The programs of a runner: each compiled function with its name and its shapes."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from service.compile.program import Program
from service.engine.shapes import Bucket, CopyKind, EngineShapes, StepKind
from service.engine.steps.inputs import (
    LastHiddenInputs,
    SampleTargets,
    empty_copy,
    empty_count,
    empty_prompt,
    empty_sample,
    empty_step,
    unrestricted_mask,
)
from service.engine.steps.names import (
    COUNT_TOKENS,
    INITIAL_SLOTS,
    copy_name,
    distinct,
    embed_name,
    initial_cache_name,
    last_hidden_name,
    layer_group_name,
    prompt_logprobs_name,
    sample_name,
)
from service.engine.steps.sharding import placed, placement_of
from service.engine.steps.step import (
    SlotState,
    count_step,
    embed_tokens,
    initial_slots,
    last_hidden,
    prompt_logprobs,
    restore_pages,
    run_layer_group,
    sample_step,
    save_pages,
)
from service.models.interface import Cache, LayerGroup, LayerGroupInputs, PagedDecoder


def engine_programs(
    model: PagedDecoder, shapes: EngineShapes, weight_shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> list[Program]:
    """Return all programs that a runner of these shapes needs."""
    programs = _EnginePrograms(model, shapes, weight_shapes)
    return [*programs.initial(), *programs.ends_of_steps(), *programs.samplers(), *programs.layer_groups()]


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
            self._maker(
                initial_cache_name(group, part), functools.partial(self._make_cache, group, part), self._place.cache
            )
            for group in distinct(self._model.layer_groups)
            for part in range(self._shapes.layout.num_parts)
        ]
        return [self._maker(INITIAL_SLOTS, self._make_slots, self._place.replicated), *caches]

    def ends_of_steps(self) -> list[Program]:
        """Return the programs before the first layer group of a step, and after the last."""
        embeds = [
            self._of_slots(
                embed_name(kind, bucket),
                functools.partial(embed_tokens, self._model, kind, bucket=bucket),
                empty_step(bucket, self._shapes).packed,
            )
            for kind, bucket in self._shapes.buckets
        ]
        lasts = [
            self._of_slots(
                last_hidden_name(*shape), last_hidden, LastHiddenInputs(self._hidden(*shape), _int32(shape[0]))
            )
            for shape in self._shapes.token_shapes(StepKind.PREFILL)
        ]
        return [*embeds, *lasts]

    def samplers(self) -> list[Program]:
        """Return the programs from hidden states to tokens and log-probabilities."""
        samplers = [
            self._of_slots(
                sample_name(kind, num_seqs),
                functools.partial(sample_step, self._model, kind),
                empty_sample(
                    kind,
                    self._hidden(num_seqs, 1),
                    SampleTargets(_int32(num_seqs), _int32(num_seqs)),
                    unrestricted_mask(num_seqs, self._model.vocab_size),
                ),
            )
            for kind in StepKind
            for num_seqs in self._shapes.seq_counts(kind)
        ]
        logprobs = [
            self._of_slots(
                prompt_logprobs_name(*shape),
                functools.partial(prompt_logprobs, self._model),
                empty_prompt(self._hidden(*shape)),
            )
            for shape in self._shapes.token_shapes(StepKind.PREFILL)
        ]
        return [*samplers, *logprobs, self._of_slots(COUNT_TOKENS, count_step, empty_count(self._shapes))]

    def layer_groups(self) -> list[Program]:
        """Return the programs that run layers, and those that copy their cache."""
        return [program for group in distinct(self._model.layer_groups) for program in self._of_group(group)]

    def _of_group(self, group: LayerGroup) -> list[Program]:
        weights = [self._weights[name] for name in group.weights]
        cache = placed(self._cache_shapes(group), self._place.cache)
        layers = [
            self._program(
                layer_group_name(kind, bucket, group),
                functools.partial(run_layer_group, self._model, group),
                (weights, cache, self._group_inputs(bucket)),
            )
            for kind, bucket in self._shapes.buckets
        ]
        copies = [
            self._program(
                copy_name(kind, size, group),
                functools.partial(function, self._model),
                ((), cache, empty_copy(size, self._shapes)),
            )
            for kind, function in ((CopyKind.SAVE, save_pages), (CopyKind.RESTORE, restore_pages))
            for size in self._shapes.copy_sizes
            if self._shapes.has_slot_cache
        ]
        return [*layers, *copies]

    def _make_cache(self, group: LayerGroup, part: int) -> Any:
        return self._model.initial_cache(self._shapes.layout, group)[part]

    def _cache_shapes(self, group: LayerGroup) -> Cache:
        return jax.eval_shape(functools.partial(self._model.initial_cache, self._shapes.layout, group))

    def _group_inputs(self, bucket: Bucket) -> LayerGroupInputs:
        """Return the shapes of a layer group's inputs; those that depend on the model come from its `embed`."""
        hidden, rotation = self._embedded(bucket.num_seqs, bucket.num_tokens)
        return LayerGroupInputs(hidden, rotation, empty_step(bucket, self._shapes).paging)

    def _embed_shapes(self, num_seqs: int, num_tokens: int) -> tuple[Any, Any]:
        tokens = _int32(num_seqs, num_tokens)
        return jax.eval_shape(self._model.embed, self._weights, tokens, tokens)

    def _hidden(self, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*shape, self._model.hidden_size), self._model.dtype)

    def _of_slots(self, name: str, function: Callable[..., tuple[SlotState, Any]], inputs: Any) -> Program:
        return self._program(name, function, (self._weights, self._slots, inputs))

    def _program(self, name: str, function: Callable[..., tuple[Any, Any]], arguments: tuple[Any, Any, Any]) -> Program:
        constants, state, inputs = arguments
        shaped = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), inputs)
        return Program(name, function, constants, state, shaped, self._place.replicated, self._place.replicated)

    def _maker(self, name: str, make: Callable[[], Any], sharding: Any) -> Program:
        def run(_: Any, none: Any, __: Any) -> tuple[Any, Any]:
            return none, make()

        return Program(name, run, outputs_sharding=sharding)


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)
