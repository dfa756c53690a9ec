"""From a checkpoint's tensors to the arrays that the executables take: reshape, join, cast, place."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from service.errors import MalformedCheckpoint
from service.models.weight_spec import TensorSource, WeightSpec
from service.weights.assembly import Assembly

if TYPE_CHECKING:
    import jax

    from service.device.mesh import DeviceMesh

# Numpy copies and casts without holding Python's lock, so a few threads hide the disk behind the memory.
NUM_THREADS = 4
# Old checkpoints carry tables that every reader computes anew.
_COMPUTED_SUFFIXES = (".rotary_emb.inv_freq",)


def check_tensors(uri: str, specs: Iterable[WeightSpec], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check, before any byte is moved, that a checkpoint holds what a model is made of, and nothing else.

    Args:
        uri: the checkpoint's address, for messages.
        specs: what the model is made of.
        shapes: the shape of each tensor that is there.

    Raises:
        MalformedCheckpoint: a tensor is missing, has another shape, or has no place in the model.
    """
    sources = {source.name: source for spec in specs for source in spec.sources}
    for name, source in sources.items():
        if name not in shapes:
            raise MalformedCheckpoint(uri, name, f"is missing. config.json asks for it in shape {list(source.shape)}.")
        if shapes[name] != source.shape:
            raise MalformedCheckpoint(
                uri, name, f"has shape {list(shapes[name])}; config.json makes it {list(source.shape)}."
            )
    spare = [name for name in shapes if name not in sources and not name.endswith(_COMPUTED_SUFFIXES)]
    # With tied embeddings some writers store the same table twice; the embedding is the one that counts.
    spare = [name for name in spare if not (name == "lm_head.weight" and _is_tied(sources))]
    if spare:
        raise MalformedCheckpoint(
            uri,
            spare[0],
            f"{len(spare)} tensors such as this one have no place in the model that config.json describes, "
            "so the answers would be wrong. Check model_type and the bias, norm and layer settings there.",
        )


def load_weights(
    specs: Iterable[WeightSpec],
    tensors: Mapping[str, np.ndarray],
    dtype: np.dtype,
    *,
    mesh: "DeviceMesh | None",
) -> "dict[str, np.ndarray | jax.Array]":
    """Make every weight from tensors that are on this machine, and place it if there is where.

    Args:
        specs: what to make; `check_tensors` has accepted it.
        tensors: the checkpoint's tensors, read as they are asked for.
        dtype: what to cast to.
        mesh: where to place the weights, by the names of their axes; None: they stay on the host.
    """
    all_specs = tuple(specs)
    assembly = Assembly(all_specs, dtype, mesh)

    def load_one(name: str) -> None:
        assembly.opening_bytes([name])
        assembly.write(name, 0, np.ascontiguousarray(tensors[name]).reshape(-1))

    # Each tensor once: one that two weights share is written to both.
    names = dict.fromkeys(source.name for spec in all_specs for source in spec.sources)
    with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="weights") as pool:
        list(pool.map(load_one, names))
    return assembly.weights()


def _is_tied(sources: Mapping[str, TensorSource]) -> bool:
    return "lm_head.weight" not in sources
