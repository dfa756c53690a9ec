"""Logits at every position of a text, computed with the parts of a serving step but without an engine."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from service.errors import UnsupportedModel
from service.kernels.paging import ZERO_STATE, Paging, Regions, StateSlots
from service.models.interface import HasLayerInputs, LayerGroupInputs, PagedDecoder, Weights
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.context import StartContext
from service.start.graph import Tasks
from service.start.kinds.engine_spec import EngineSpec
from service.start.load import add_discovery
from service.start.progress import StartProgress
from service.start.tasks import load_text, load_weights, pull_tokenizer_files
from service.text.tokenizer import Tokenizer

STEP_TOKENS = 64  # few enough that their logits fit into memory twice


@dataclass(frozen=True)
class Scorer:
    """A loaded model that scores one sequence at a time."""

    uri: str
    spec: EngineSpec
    weights: dict[str, jax.Array]
    tokenizer: Tokenizer

    @classmethod
    def of(cls, settings: Settings) -> "Scorer":
        """Load the model of the settings; raises StartError, also if it is not a generative model."""
        metrics = Metrics()
        context = StartContext(settings.model_copy(update={"max_num_seqs": 1}), metrics, StartProgress(metrics))
        tasks = Tasks[StartContext]()
        found = add_discovery(tasks)
        tasks.begin(context, context.failed)
        spec, checkpoint = found.spec.wait(), found.checkpoint.wait()
        if not isinstance(spec, EngineSpec):
            raise UnsupportedModel(checkpoint.uri, "is an encoder; only generative models can be compared.")
        files = pull_tokenizer_files(context, checkpoint)
        weights = load_weights(context, checkpoint, spec, expected_weights=None, prefetched_weights=None).weights
        tokenizer = load_text(context, checkpoint, files).tokenizer
        return cls(checkpoint.uri, spec, dict(weights), tokenizer)

    @property
    def vocab_size(self) -> int:
        return self.spec.config.vocab_size

    @property
    def max_tokens(self) -> int:
        """The maximum length of a sequence in tokens."""
        return self.spec.shapes.max_model_len

    def logits(self, token_ids: Sequence[int]) -> Iterator[Float[np.ndarray, "token vocab"]]:
        """Yield the logits after each token of a sequence, a few tokens at a time.

        Args:
            token_ids: at most `max_tokens` tokens, starting at position 0.
        """
        shapes, steps = self.spec.shapes, self._steps
        pages = jnp.arange(shapes.pages_for(shapes.max_model_len), dtype=jnp.int32)[None]
        caches = [steps.empty_cache(group) for group in self.spec.layer_groups]
        for start in range(0, len(token_ids), STEP_TOKENS):
            part = token_ids[start : start + STEP_TOKENS]
            padded = np.zeros(STEP_TOKENS, np.int32)
            padded[: len(part)] = part
            begin, num_tokens = (jnp.array([number], jnp.int32) for number in (start, len(part)))
            regions = Regions.of_prompts(Paging(begin, num_tokens, pages, states=self._states(start)))
            (hidden, rotation), per_layer = steps.embed(self.weights, padded, regions)
            for index, group in enumerate(self.spec.layer_groups):
                weights = [self.weights[name] for name in group.weights]
                inputs = LayerGroupInputs(hidden, rotation, regions, per_layer=per_layer[index] if per_layer else None)
                read = tuple(caches[shared.group][shared.layer] for shared in group.shared)
                hidden, changed = steps.layers[group.kind](weights, read or caches[index], inputs)
                if not read:
                    caches[index] = changed
            yield np.asarray(steps.logits(self.weights, hidden))[: len(part)]

    def _states(self, start: int) -> StateSlots | None:
        """Return the slot of the one sequence, of a model whose layers keep states."""
        if self.spec.shapes.states is None:
            return None
        slot = jnp.zeros(1, jnp.int32)
        return StateSlots(slot if start else jnp.full(1, ZERO_STATE, jnp.int32), slot)

    @functools.cached_property
    def _steps(self) -> "_Steps":
        return _Steps(self.spec, self.spec.model())


class _Steps:
    """The parts of a step, compiled on first use."""

    def __init__(self, spec: EngineSpec, model: PagedDecoder) -> None:
        first_of_kind = {group.kind: group for group in reversed(spec.layer_groups)}
        self.layers = {
            kind: jax.jit(functools.partial(model.run_layer_group, group), donate_argnums=() if group.shared else 1)
            for kind, group in first_of_kind.items()
        }
        self.logits = jax.jit(lambda weights, hidden: model.logits(weights, hidden, jnp.int32(len(hidden))))

        def embed(weights: Weights, token_ids: Int[Array, " token"], regions: Regions) -> tuple[Any, Any]:
            embedded = model.embed(weights, token_ids, regions.positions(len(token_ids)))
            if not isinstance(model, HasLayerInputs):
                return embedded, ()
            return embedded, model.per_layer_inputs(weights, token_ids, embedded[0])

        self.embed = jax.jit(embed)
        self._initial_cache = functools.partial(model.initial_cache, spec.shapes.layout)

    def empty_cache(self, group: Any) -> Any:
        return jax.jit(functools.partial(self._initial_cache, group))()
