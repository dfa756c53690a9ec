"""Tensors that follow each other in a model, and that a writer has cut elsewhere.

transformers has the convolutions of queries, keys and values of OLMo Hybrid in one tensor, and saves it in three parts
of equal numbers of channels, though values have more. Together they are what they were.
Source: transformers 5.24 `conversion_mapping.py` (olmo_hybrid: Chunk).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from service.weights.safetensors import TensorEntry

# The ends of the names of tensors that follow each other along their first axis.
SEQUENCES = (tuple(f".linear_attn.{part}_conv1d.weight" for part in "qkv"),)

type Entries = Mapping[str, Mapping[str, TensorEntry]]  # by object and tensor
type Placed = tuple[str, TensorEntry]  # with its object


def recut(files: Entries, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Entries, Entries]:
    """Return the tensors of a checkpoint cut as a model has them, and those of their parts after the first.

    The entry of a tensor has its shape and the bytes of its first part. An entry of another part says what it is part
    of.

    Args:
        files: the tensors of each object.
        shapes: of the tensors of the model, by name.
    """
    cut = {file: dict(own) for file, own in files.items()}
    further: dict[str, dict[str, TensorEntry]] = {file: {} for file in files}
    for ends in SEQUENCES:
        wanted = [next((shape for name, shape in shapes.items() if name.endswith(end)), ()) for end in ends]
        for stored in _stored_sequences(files, ends):
            if not all(wanted) or not _is_cut_elsewhere([entry for _, entry in stored.values()], wanted):
                continue
            for name, (file, _) in stored.items():
                del cut[file][name]
            for name, shape, parts in zip(stored, wanted, _parts(list(stored.values()), wanted), strict=True):
                first = 0
                for number, (file, entry) in enumerate(parts):
                    if number == 0:
                        cut[file][name] = replace(entry, shape=shape)
                    else:
                        further[file][f"part {number + 1} of {name}"] = replace(entry, part_of=(name, first))
                    first += math.prod(entry.shape)
    return cut, further


def _stored_sequences(files: Entries, ends: Sequence[str]) -> Iterator[dict[str, Placed]]:
    """Yield the tensors of each sequence that is whole, by their names."""
    places = {name: (file, entry) for file, own in files.items() for name, entry in own.items()}
    for prefix in [name.removesuffix(ends[0]) for name in places if name.endswith(ends[0])]:
        names = [prefix + end for end in ends]
        if all(name in places for name in names):
            yield {name: places[name] for name in names}


def _is_cut_elsewhere(stored: Sequence[TensorEntry], wanted: Sequence[tuple[int, ...]]) -> bool:
    """Return whether tensors have together what a model's have, of one type, and not each for itself."""
    if [entry.shape for entry in stored] == list(wanted) or any(entry.strides is not None for entry in stored):
        return False
    kinds = {(entry.dtype_name, entry.shape[1:]) for entry in stored}
    num_rows = [sum(shape[0] for shape in shapes if shape) for shapes in ([entry.shape for entry in stored], wanted)]
    return len(kinds) == 1 and stored[0].shape[1:] == wanted[0][1:] and num_rows[0] == num_rows[1]


def _parts(stored: Sequence[Placed], wanted: Sequence[tuple[int, ...]]) -> Iterator[list[Placed]]:
    """Yield the parts of each tensor of a model, in order, as entries of their own."""
    begins = [0, *accumulate(entry.shape[0] for _, entry in stored)]
    for first, end in pairwise([0, *accumulate(shape[0] for shape in wanted)]):
        parts = []
        for (file, entry), begin in zip(stored, begins, strict=False):
            low, high = max(first, begin), min(end, begin + entry.shape[0])
            if low < high:
                row_bytes = (entry.end - entry.begin) // entry.shape[0]
                own = (entry.begin + (low - begin) * row_bytes, entry.begin + (high - begin) * row_bytes)
                parts.append((file, replace(entry, shape=(high - low, *entry.shape[1:]), begin=own[0], end=own[1])))
        yield parts
