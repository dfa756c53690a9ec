"""Reading of an adapter: its tensors, verified like those of any checkpoint, as updates of a model's weights.

Before any tensor is read, they are matched with the layers of the model. They say which layers an adapter updates: PEFT
writes them only for those that `target_modules`, `exclude_modules` and `layers_to_transform` choose. Whole tensors of
the model beside the updates were trained with it (`modules_to_save`, biases, tokens), or are copies that PEFT saves
because the vocabulary may have changed. A merge puts them in the place of the base's, copies included. In a slot only
copies of the base's can be served, by leaving them out.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import ml_dtypes
import numpy as np

from service.checkpoint.adapters.locate import LocatedAdapter
from service.checkpoint.adapters.names import BIAS, PREFIX, TOKENS, WHOLE, A, AdapterTensor, B, read_names
from service.checkpoint.adapters.peft import CONFIG
from service.checkpoint.limits import LoadLimits
from service.checkpoint.samples import are_equal
from service.errors import RefusedAdapter
from service.models.adapted import SUFFIX, adapted_tensors
from service.models.weight_spec import FLOAT32, TensorSource, WeightSpec, bare_name
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget, TransferLimits
from service.weights.headers import read_headers
from service.weights.low_rank import LowRankUpdate, TrainedValues, Update
from service.weights.safetensors import WIDE_DTYPES, TensorEntry
from service.weights.stream import stream_weights

logger = logging.getLogger(__name__)

HEAD = "lm_head.weight"
ONLY_MERGED = "has no place in a slot, beside other adapters. Merge the adapter into a model: set ADAPTER_URI"

# Returns whether the model that is served has these values under the name of a checkpoint's tensor.
type IsOwn = Callable[[str, np.ndarray], bool]


@dataclass(frozen=True)
class SlotLimits:
    """What a slot of a running model can hold."""

    max_rank: int
    dtype: np.dtype
    is_own: IsOwn


@dataclass(frozen=True)
class LayerUpdate:
    """The tensors of one layer's update."""

    tensor: TensorSource  # of the model, which is updated
    module: str  # the layer's name in the base model
    stored: Mapping[str, str]  # names in the file, of A and B
    rank: int
    scale: float

    @property
    def specs(self) -> tuple[WeightSpec, WeightSpec]:
        """The arrays A, [rank, in], and B, [out, rank]."""
        num_out, num_in = self.tensor.shape
        shapes = {A: (self.rank, num_in), B: (num_out, self.rank)}
        usual = f"{PREFIX}{self.module}"
        sources = (TensorSource(self.stored.get(end, f"{usual}.{end}"), shapes[end], shapes[end]) for end in (A, B))
        first, second = (WeightSpec(s.name, ("row", "column"), s.shape, (s,)) for s in sources)
        return first, second


@dataclass(frozen=True)
class TrainedTensor:
    """A tensor of the model, or some rows of one, that lies in an adapter's file."""

    tensor: TensorSource  # of the model
    own: AdapterTensor
    shape: tuple[int, ...]
    dtype: np.dtype  # as it is stored
    rows: tuple[int, ...] | None = None  # in the order of the file; None for the whole tensor
    scale: float | None = None  # of what is added; None for what takes the place of the tensor

    @property
    def is_whole(self) -> bool:
        """Whether it takes the place of the whole tensor."""
        return self.rows is None and self.scale is None

    @property
    def spec(self) -> WeightSpec:
        """The array, in the model's layout."""
        is_transposed = self.tensor.is_transposed and self.rows is None
        source = TensorSource(self.own.stored, self.shape, self.shape, is_transposed=is_transposed)
        return WeightSpec(self.own.stored, ("row",) * len(self.shape), self.shape, (source,), dtype=self.dtype)


@dataclass(frozen=True)
class Matched:
    """An adapter's tensors and the model's."""

    layers: Sequence[LayerUpdate]
    trained: Sequence[TrainedTensor]


def match_adapter(adapter: LocatedAdapter, specs: Sequence[WeightSpec]) -> Matched:
    """Match an adapter that is to be merged with a model, by its header and samples; raises as `read_updates`."""
    with adapter.files.source.open_ranges() as ranges:
        file = OpenFile(ranges, replace(adapter.weights, crc32c=""))
        budget = RetryBudget(TransferLimits())
        [header] = read_headers([file], budget)
        matched = _Matching(adapter, header.entries, specs, None).matched()
        first: dict[str, TrainedTensor] = {}
        for each in matched.trained:
            other = first.setdefault(each.tensor.name, each)
            places = [(file, header.entries[of.own.stored]) for of in (other, each)]
            if other.is_whole and each.is_whole and not are_equal(places[0], places[1], budget):
                raise _two_tables(adapter, each)
    return matched


def read_updates(
    adapter: LocatedAdapter, specs: Sequence[WeightSpec], limits: LoadLimits, slot: SlotLimits | None = None
) -> dict[str, Update]:
    """Read the updates of a model's weights, by the names of the model's tensors.

    Args:
        adapter: the adapter.
        specs: the weights of the model.
        limits: the resources of the load.
        slot: the slot that the adapter is for; None if it is merged into the weights.

    Raises:
        RefusedAdapter: the adapter is of another model, of a kind that is not served, or not finite.
        CheckpointError: the bytes did not come whole, or are not what their header says.
    """
    if slot is not None:
        for field, value in adapter.config.trained.items():
            raise RefusedAdapter(adapter.uri, CONFIG, field, f"is {value!r}, which {ONLY_MERGED}")
    files = adapter.files
    with files.source.open_files(
        files.objects,
        [adapter.weights],
        cache=limits.cache,
        progress=limits.progress,
        cancelled=limits.cancelled,
    ) as opened:
        [header] = read_headers(opened.files, opened.budget)
        matched = _Matching(adapter, header.entries, specs, slot).matched()
        parts = [part for layer in matched.layers for part in layer.specs] + [each.spec for each in matched.trained]
        streamed = stream_weights(parts, opened, max_staging_bytes=limits.max_staging_bytes)
        opened.cache_copies(streamed.file_sums, streamed.disk_fault)
    opened.release()
    # All arrays are parts of one allocation, which ends with the last of them.
    arrays = {name: np.asarray(array) for name, array in streamed.weights.items()}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise RefusedAdapter(adapter.uri, adapter.weights.name, name, "has a value that is NaN or infinite")
    layers = matched.layers
    dtypes = {source.name: slot.dtype if slot else spec.dtype for spec in specs for source in spec.sources}
    products = {layer.tensor.name: _update(adapter, layer, arrays, dtypes[layer.tensor.name]) for layer in layers}
    if slot is not None:
        _check_elements(adapter, products, slot.dtype)
    updates = products | _trained_values(adapter, matched.trained, arrays, products, slot)
    facts = {"uri": adapter.uri, "base": adapter.config.base, "layers": len(layers)}
    if matched.trained:
        what = "left_out_copies" if slot else "whole_tensors"
        facts[what] = [each.own.stored for each in matched.trained]
    logger.info("read an adapter", extra={**facts, "max_rank": max((layer.rank for layer in layers), default=0)})
    return updates


def _trained_values(
    adapter: LocatedAdapter,
    trained: Sequence[TrainedTensor],
    arrays: Mapping[str, np.ndarray],
    products: Mapping[str, LowRankUpdate],
    slot: SlotLimits | None,
) -> dict[str, Update]:
    """Return what takes the place of tensors; of an adapter for a slot nothing does, or it is refused."""
    file, values = adapter.weights.name, {each.own.stored: arrays[each.own.stored] for each in trained}
    updates: dict[str, Update] = {}
    for each in trained:
        own = values[each.own.stored]
        if slot is not None:
            if not slot.is_own(each.tensor.name, own):
                raise RefusedAdapter(
                    adapter.uri, file, each.own.stored, f"differs from the base's, which {ONLY_MERGED}"
                )
            continue
        if each.rows is not None:
            order = np.argsort(each.rows)
            updates[each.tensor.name] = TrainedValues(own[order], tuple(sorted(each.rows)))
        elif each.scale is not None:
            updates[each.tensor.name] = TrainedValues(own.astype(np.float32) * each.scale, is_added=True)
        elif isinstance(first := updates.get(each.tensor.name), TrainedValues):
            # The head of a model whose head is its embedding: they are one tensor as long as they are equal.
            if not np.array_equal(first.values, own):
                raise _two_tables(adapter, each)
        else:
            updates[each.tensor.name] = TrainedValues(own, product=products.get(each.tensor.name))
    return updates


def _two_tables(adapter: LocatedAdapter, head: TrainedTensor) -> RefusedAdapter:
    reason = "differs from the embedding, which is the head of the base. Merge the adapter with PEFT"
    return RefusedAdapter(adapter.uri, adapter.weights.name, head.own.stored, reason)


def _check_elements(adapter: LocatedAdapter, updates: Mapping[str, LowRankUpdate], dtype: np.dtype) -> None:
    """Check that a slot can hold the narrow matrices themselves: an infinite one would reach other tokens."""
    limit = float(ml_dtypes.finfo(dtype).max)
    for tensor, update in updates.items():
        if not max(np.abs(part).max() for part in (update.a, update.b)) < limit:
            reason = f"has a value, scale included, beyond the {limit:.3g} that {dtype.name} holds"
            raise RefusedAdapter(adapter.uri, adapter.weights.name, tensor, reason)


def _update(
    adapter: LocatedAdapter, layer: LayerUpdate, arrays: Mapping[str, np.ndarray], dtype: np.dtype
) -> LowRankUpdate:
    """Return one layer's update, which fits into the range of the weight's type."""
    first, second = layer.specs
    with np.errstate(over="ignore"):
        update = LowRankUpdate(arrays[first.name], arrays[second.name] * np.float32(layer.scale))
    # Weights in 8 bits have scales, so they hold what float32 does.
    limit = float(ml_dtypes.finfo(dtype if dtype.itemsize > 1 else FLOAT32).max)
    if not update.bound < limit:
        reason = f"its product with {first.name!r} may reach {update.bound:.3g}; {dtype.name} holds up to {limit:.3g}"
        raise RefusedAdapter(adapter.uri, adapter.weights.name, second.name, reason)
    return update


@dataclass(frozen=True)
class _Matching:
    """The tensors of an adapter, and the model that they are matched with."""

    adapter: LocatedAdapter
    entries: Mapping[str, TensorEntry]  # the header of the adapter's file
    specs: Sequence[WeightSpec]
    slot: SlotLimits | None

    def matched(self) -> Matched:
        """Return the tensors of the model that each tensor of the adapter is for.

        Raises:
            RefusedAdapter: a tensor is of another model, lacks its partner, or is of a kind that is not served.
        """
        named = read_names(self.adapter.uri, self.adapter.weights.name, self.entries)
        if not named:
            raise self._refuse("tensors", "there are none")
        modules: dict[str, dict[str, str]] = {}
        for tensor in named:
            if tensor.part in {A, B}:
                modules.setdefault(tensor.module, {})[tensor.part] = tensor.stored
        layers = [self._layer(module, stored) for module, stored in modules.items()]
        # An embedding comes before the head that may be the same.
        whole = sorted((tensor for tensor in named if tensor.part == WHOLE), key=lambda tensor: tensor.module == HEAD)
        parts = [tensor for tensor in named if tensor.part in {BIAS, TOKENS}]
        return Matched(layers, [*map(self._whole, whole), *map(self._part, parts)])

    @cached_property
    def _layers(self) -> Mapping[str, TensorSource]:
        """The tensors that products may be added to, by their bare names: in a merge the head too."""
        layers = {source.bare_name: source for source in adapted_tensors(self.specs).values()}
        if self.slot is None:
            heads = (spec.sources for spec in self.specs if spec.name == "unembed")
            layers |= {source.bare_name: source for sources in heads for source in sources}
        return layers

    @cached_property
    def _tensors(self) -> Mapping[str, TensorSource]:
        """All tensors of the model, by their bare names."""
        return {source.bare_name: source for spec in self.specs for source in spec.sources}

    @cached_property
    def _tied(self) -> TensorSource | None:
        """The embedding, if it is the head too."""
        if any(spec.name == "unembed" for spec in self.specs):
            return None
        return next((spec.sources[0] for spec in self.specs if spec.name == "embed"), None)

    def _layer(self, module: str, stored: Mapping[str, str]) -> LayerUpdate:
        tensor = self._layers.get(bare_name(f"{module}{SUFFIX}"))
        if tensor is None:
            raise self._refuse(f"{PREFIX}{module}", self._unserved(module))
        if tensor.is_int8 and self.slot is None:
            reason = f"the checkpoint stores {tensor.name!r} in int8, which takes no update. Merge before quantizing"
            raise self._refuse(f"{PREFIX}{module}", reason)
        if self.slot is None and tensor.packing is not None and tensor.packing.is_kept:
            reason = (
                f"{tensor.name!r} stays in 4 bits, which take no update. Serve the adapter in a slot (MAX_LORAS), or "
                "set QUANTIZATION=int8"
            )
            raise self._refuse(f"{PREFIX}{module}", reason)
        rank = self.adapter.config.rank_of(module)
        if self.slot is not None and rank > self.slot.max_rank:
            raise self._refuse(module, f"has rank {rank}; MAX_LORA_RANK is {self.slot.max_rank}")
        layer = LayerUpdate(tensor, module, stored, rank, self.adapter.config.scale_of(module))
        for spec in layer.specs:
            entry = self.entries.get(spec.name)
            if entry is None:
                raise self._refuse(spec.name, "is missing, while its partner is there")
            if entry.shape != spec.shape:
                reason = f"rank {rank} of the configuration and {tensor.name!r} of the model make it"
                raise self._refuse(spec.name, self._other_shape(entry, spec.shape, reason))
        return layer

    def _whole(self, own: AdapterTensor) -> TrainedTensor:
        """Return a tensor that is that of the model, trained or copied."""
        tensor = self._tensors.get(bare_name(own.module))
        if tensor is None and bare_name(own.module) == HEAD:
            tensor = self._tied
        if tensor is None:
            raise self._refuse(own.stored, self._unserved(own.module.removesuffix(SUFFIX)))
        if tensor is self._tied and self.slot is None:
            self._check_tied(own)
        entry = self.entries[own.stored]
        shape = entry.shape[::-1] if tensor.is_transposed else entry.shape
        return self._trained(tensor, own, shape, tensor.shape)

    def _check_tied(self, own: AdapterTensor) -> None:
        """Refuse an embedding that was trained apart from the head, which is the same tensor of the base."""
        has_both = sum(bare_name(tensor.module) == HEAD or self._is_embedding(tensor) for tensor in self._wholes) > 1
        if not (has_both or self.adapter.config.ties):
            reason = "was trained apart from the embedding or the head, which are one tensor of the base"
            raise self._refuse(
                own.stored, f"{reason}. Merge the adapter with PEFT, or train it with ensure_weight_tying"
            )

    @cached_property
    def _wholes(self) -> Sequence[AdapterTensor]:
        named = read_names(self.adapter.uri, self.adapter.weights.name, self.entries)
        return [tensor for tensor in named if tensor.part == WHOLE]

    def _is_embedding(self, own: AdapterTensor) -> bool:
        return self._tied is not None and bare_name(own.module) == self._tied.bare_name

    def _part(self, own: AdapterTensor) -> TrainedTensor:
        """Return trained rows of an embedding, or what is added to a bias."""
        is_bias = own.part == BIAS
        tensor = self._tensors.get(bare_name(f"{own.module}{'.bias' if is_bias else SUFFIX}"))
        if tensor is None:
            raise self._refuse(
                own.stored, "the layer has no bias to add it to" if is_bias else self._unserved(own.module)
            )
        entry = self.entries[own.stored]
        if is_bias:
            return self._trained(tensor, own, entry.shape, tensor.shape, scale=self.adapter.config.scale_of(own.module))
        rows = self.adapter.config.tokens_of(own.module)
        if len(set(rows)) != len(rows) or not all(0 <= row < tensor.shape[0] for row in rows):
            raise RefusedAdapter(self.adapter.uri, CONFIG, "trainable_token_indices", "names no or equal tokens")
        return self._trained(tensor, own, entry.shape, (len(rows), *tensor.shape[1:]), rows=rows)

    def _trained(
        self,
        tensor: TensorSource,
        own: AdapterTensor,
        shape: tuple[int, ...],
        expected: tuple[int, ...],
        *,
        rows: tuple[int, ...] | None = None,
        scale: float | None = None,
    ) -> TrainedTensor:
        entry = self.entries[own.stored]
        if shape != expected:
            raise self._refuse(own.stored, self._other_shape(entry, expected, f"{tensor.name!r} of the model makes it"))
        if tensor.is_int8 or tensor.packing is not None or entry.dtype_name not in WIDE_DTYPES:
            raise self._refuse(own.stored, f"{tensor.name!r} of the model, or this, is quantized and takes no update")
        return TrainedTensor(tensor, own, expected, WIDE_DTYPES[entry.dtype_name], rows, scale)

    def _other_shape(self, entry: TensorEntry, expected: tuple[int, ...], why: str) -> str:
        trained = f"The adapter was trained on {self.adapter.config.base!r}"
        return f"has shape {list(entry.shape)}; {why} {list(expected)}. {trained}"

    def _unserved(self, module: str) -> str:
        """Return why no layer has this name."""
        if bare_name(f"{module}{SUFFIX}") in self._tensors or ".experts" in module or module == "lm_head":
            return (
                "only linear layers of attention and of dense feed-forwards are adapted, not embeddings, heads or "
                "experts"
            )
        return f"the model has no such layer; the adapter was trained on {self.adapter.config.base!r}"

    def _refuse(self, field: str, reason: str) -> RefusedAdapter:
        return RefusedAdapter(self.adapter.uri, self.adapter.weights.name, field, reason)
