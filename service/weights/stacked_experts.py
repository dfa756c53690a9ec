"""Mixtral's experts as Levanter exports them: stacked in two tensors, which stand for those of each expert."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from service.errors import MalformedCheckpoint
from service.weights.safetensors import DTYPES, TensorEntry

STACKED, SINGLE = ".mlp.", ".block_sparse_moe."
# Each stacked tensor, and the matrices of an expert that it holds, one after the other.
# Source: Levanter `models/mixtral.py` (MixtralMoEMlp.to_state_dict); transformers `models/mixtral/modeling_mixtral.py`.
PARTS = {"experts.gate_up_proj": ("w1", "w3"), "experts.down_proj": ("w2",)}
ROUTER = "gate.weight"


def with_single_experts(uri: str, entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Describe the parts of stacked tensors of one object as tensors of their own.

    Raises:
        MalformedCheckpoint: a checkpoint has stacked and single tensors of a layer.
    """
    single: dict[str, TensorEntry] = {}
    for name, entry in entries.items():
        for part, found in _parts(name, entry):
            if part in single or (part != name and part in entries):
                raise MalformedCheckpoint(uri, entry.file, f"{part!r} is in {name!r} too.")
            single[part] = found
    return single


def _parts(name: str, entry: TensorEntry) -> Iterable[tuple[str, TensorEntry]]:
    layer, separator, rest = name.partition(STACKED)
    if not separator:
        return [(name, entry)]
    if rest == ROUTER:
        return [(f"{layer}{SINGLE}{rest}", entry)]
    matrices, dtype = PARTS.get(rest, ()), DTYPES.get(entry.dtype_name)
    is_stack = len(entry.shape) == 3 and entry.strides is None
    if not matrices or dtype is None or not is_stack or entry.shape[1] % len(matrices):
        return [(name, entry)]
    count, rows, columns = entry.shape
    shape = (rows // len(matrices), columns)
    num_bytes = math.prod(shape) * dtype.itemsize
    numbered = [(expert, matrix) for expert in range(count) for matrix in matrices]
    begins = [entry.begin + num_bytes * place for place in range(len(numbered))]
    return [
        (
            f"{layer}{SINGLE}experts.{expert}.{matrix}.weight",
            replace(entry, shape=shape, begin=begin, end=begin + num_bytes),
        )
        for (expert, matrix), begin in zip(numbered, begins, strict=True)
    ]
