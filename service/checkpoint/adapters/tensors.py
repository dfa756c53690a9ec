"""The tensors of an adapter, matched with the linear layers of a model before any of them is read.

The tensors say which layers an adapter updates: PEFT writes them for those alone that `target_modules`,
`exclude_modules` and `layers_to_transform` have chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.checkpoint.adapters.locate import WEIGHTS, LocatedAdapter
from service.errors import RefusedAdapter
from service.models.adapted import SUFFIX, adapted_tensors
from service.models.weight_spec import TensorSource, WeightSpec
from service.weights.headers import bare_name
from service.weights.safetensors import TensorEntry

PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"
# Parts of the names of tensors that are not served, with what they are.
OTHERS = {
    ".lora_magnitude_vector": "DoRA is not served",
    ".lora_embedding_": "updates of embeddings are not served",
    ".lora_B.bias": "biases of adapters are not served",
    ".bias": "trained biases are not served",
}


@dataclass(frozen=True)
class LayerUpdate:
    """The tensors of one layer's update."""

    tensor: TensorSource  # of the model, which is updated
    module: str  # the layer's name in the adapter
    rank: int
    scale: float

    @property
    def specs(self) -> tuple[WeightSpec, WeightSpec]:
        """The arrays A, [rank, in], and B, [out, rank]."""
        num_out, num_in = self.tensor.shape
        shapes = {A: (self.rank, num_in), B: (num_out, self.rank)}
        sources = (TensorSource(f"{PREFIX}{self.module}{end}", shape, shape) for end, shape in shapes.items())
        first, second = (WeightSpec(s.name, ("row", "column"), s.shape, (s,)) for s in sources)
        return first, second


def match_tensors(
    adapter: LocatedAdapter,
    entries: Mapping[str, TensorEntry],
    specs: Sequence[WeightSpec],
    max_rank: int | None = None,
    *,
    is_merged: bool = True,
) -> list[LayerUpdate]:
    """Match an adapter's tensors with the layers of a model.

    Args:
        adapter: the adapter.
        entries: the header of its file.
        specs: the weights of the model.
        max_rank: the limit on ranks; None for none.
        is_merged: whether weights are updated, and not products with them.

    Raises:
        RefusedAdapter: a tensor is of another model, lacks its partner, or is not an update of a linear layer.
    """
    layers = {bare_name(name): source for name, source in adapted_tensors(specs).items()}
    others = {bare_name(source.name) for spec in specs for source in spec.sources}
    modules = dict.fromkeys(_module(adapter, name) for name in entries)
    if not modules:
        raise RefusedAdapter(adapter.uri, WEIGHTS, "tensors", "there are none")
    found: list[LayerUpdate] = []
    for module in modules:
        tensor = layers.get(bare_name(f"{module}{SUFFIX}"))
        if tensor is None:
            raise RefusedAdapter(adapter.uri, WEIGHTS, f"{PREFIX}{module}", _unserved(adapter, module, others))
        if tensor.is_int8 and is_merged:
            reason = f"the checkpoint stores {tensor.name!r} in int8, which takes no update. Merge before quantizing"
            raise RefusedAdapter(adapter.uri, WEIGHTS, f"{PREFIX}{module}", reason)
        if is_merged and tensor.packing is not None and tensor.packing.is_kept:
            reason = (
                f"{tensor.name!r} stays in 4 bits, which take no update. Serve the adapter in a slot (MAX_LORAS), or "
                "set QUANTIZATION=int8"
            )
            raise RefusedAdapter(adapter.uri, WEIGHTS, f"{PREFIX}{module}", reason)
        rank = adapter.config.rank_of(module)
        if max_rank is not None and rank > max_rank:
            raise RefusedAdapter(adapter.uri, WEIGHTS, module, f"has rank {rank}; MAX_LORA_RANK is {max_rank}")
        found.append(LayerUpdate(tensor, module, rank, adapter.config.scale_of(module)))
        _check_shapes(adapter, found[-1], entries)
    return found


def _module(adapter: LocatedAdapter, name: str) -> str:
    """Return the layer of a tensor, by its name in the base model."""
    end = next((end for end in (A, B) if name.endswith(end)), None)
    if end is None or not name.startswith(PREFIX):
        reason = next((reason for part, reason in OTHERS.items() if part in name), None)
        reason = reason or f"is no update of a linear layer, whose names begin with {PREFIX!r} and end with {A!r}"
        raise RefusedAdapter(adapter.uri, WEIGHTS, name, reason)
    return name.removeprefix(PREFIX).removesuffix(end)


def _unserved(adapter: LocatedAdapter, module: str, others: set[str]) -> str:
    """Return why no layer has this name."""
    if bare_name(f"{module}{SUFFIX}") in others or ".experts" in module:
        return (
            "only linear layers of attention and of dense feed-forwards are adapted, not embeddings, heads or experts"
        )
    return f"the model has no such layer; the adapter was trained on {adapter.config.base!r}"


def _check_shapes(adapter: LocatedAdapter, update: LayerUpdate, entries: Mapping[str, TensorEntry]) -> None:
    for spec in update.specs:
        entry = entries.get(spec.name)
        if entry is None:
            raise RefusedAdapter(adapter.uri, WEIGHTS, spec.name, "is missing, while its partner is there")
        if entry.shape != spec.shape:
            raise RefusedAdapter(
                adapter.uri,
                WEIGHTS,
                spec.name,
                f"has shape {list(entry.shape)}; rank {update.rank} of the configuration and {update.tensor.name!r} of "
                f"the model make it {list(spec.shape)}. The adapter was trained on {adapter.config.base!r}",
            )
