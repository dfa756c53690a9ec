"""The weights that an adapter may update: the linear layers of a model, by the names of their tensors; no jax."""

from collections.abc import Iterable, Mapping

from service.models.weight_spec import TensorSource, WeightSpec

# Weights of attention and of dense feed-forwards. Embeddings, heads, routers and experts are not adapted, nor is what
# experts of all tokens are together.
LINEAR = (
    "qkv",
    "output",
    "gate_up",
    "up",
    "down",
    "memory_query",
    "memory_key_value",
    "memory_output",
    "state_in",
    "state_steps",
    "state_out",
)
LAYERS = ("layers.", "encoder.layers.")
SUFFIX = ".weight"


def is_adapted(spec: WeightSpec) -> bool:
    """Return whether an array is the weight of a linear layer that adapters may update, or of several side by side."""
    has_whole_layers = all(
        source.view[-1:] == spec.shape[-1:] and len(source.view) == len(spec.shape) for source in spec.sources
    )
    return spec.name.startswith(LAYERS) and spec.name.rpartition(".")[2] in LINEAR and has_whole_layers


def adapted_tensors(specs: Iterable[WeightSpec]) -> Mapping[str, TensorSource]:
    """Return the tensors of a checkpoint that are weights of linear layers [out, in], by their names."""
    return {
        source.name: source
        for spec in specs
        if is_adapted(spec)
        for source in spec.sources
        if source.name.endswith(SUFFIX)
    }
