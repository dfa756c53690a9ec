"""The tensor headers of a checkpoint's files, in safetensors or pickle format, checked against a model's weights."""

from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from service.errors import MalformedCheckpoint
from service.models.stored.layers import FLOATING, INTEGERS, WIDE, StoredTensor
from service.models.weight_spec import WeightSpec
from service.storage.objects import read_range
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget, TransferLimits
from service.weights.names import FoundTensor, Resolution, resolve
from service.weights.recut import recut
from service.weights.safetensors import DTYPES, MAX_TENSORS, Header, HeaderRoom, TensorEntry, read_header
from service.weights.stacked_experts import layout_of, with_single_experts
from service.weights.strided import transposed_entry

# Of one weight: values, scales, zeros and permutations, and some more; and other tensors, such as those of images.
PARTS_PER_TENSOR, OTHER_TENSORS = 8, 4096
SAFETENSORS_SUFFIX = ".safetensors"
MAX_ZEROS_BYTES = 1 << 20  # of a bias; those of rows in a model's widest layer have less
SCALES = ("scales", "tensor_scale")  # roles of tensors that programs store with more or fewer axes of size 1
COPY = "copy {} of {}"  # among the entries of a file: a tensor that must equal another


@dataclass(frozen=True)
class TensorCopy:
    """Two tensors of the files that mean one of the model, and must be equal."""

    tensor: str  # the model's name, and that of the entry of the first
    file: str
    of: FoundTensor
    copy: str  # the name of the entry of the second
    copy_file: str
    found: FoundTensor


@dataclass(frozen=True)
class ModelTensors:
    """The tensors of a model in the files of a checkpoint."""

    entries: Mapping[str, Mapping[str, TensorEntry]]  # by object, and by the model's name
    copies: tuple[TensorCopy, ...]
    resolution: Resolution


def read_headers(files: Sequence[OpenFile], budget: RetryBudget, max_tensors: int = MAX_TENSORS) -> list[Header]:
    """Read the headers of several objects in parallel, which may have a number of tensors together.

    Raises:
        MalformedCheckpoint: a header does not describe the bytes that follow it, or they have too many tensors.
        RefusedPickle: a pickle contains something other than tensors.
        ObjectChanged, TransferFailed: see `RangeReader`.
    """
    with ThreadPoolExecutor(min(len(files), budget.limits.num_workers), thread_name_prefix="header") as pool:
        room = HeaderRoom(max_tensors)
        return list(pool.map(lambda file: _read(file, budget, room), files))


def max_tensors(specs: Iterable[WeightSpec]) -> int:
    """Return how many tensors the files may have from which weights are made: each in parts, beside others."""
    num_wanted = sum(len(spec.sources) for spec in specs)
    return min(MAX_TENSORS, PARTS_PER_TENSOR * num_wanted + OTHER_TENSORS)


def entries_of(specs: Sequence[WeightSpec], headers: Sequence[Header]) -> ModelTensors:
    """Return the tensors of each object, by its name, under the names that a model's weights have for them.

    Raises:
        MalformedCheckpoint: they do not match the model.
    """
    sources = {source.name: source for spec in specs for source in spec.sources}
    uri, files = headers[0].file.source.uri, {header.file.info.name: header.entries for header in headers}
    if (layout := layout_of(sources)) is not None:
        files = {file: with_single_experts(uri, own, layout) for file, own in files.items()}
    files, further = recut(files, {name: source.shape for name, source in sources.items()})
    by_name = {header.file.info.name: header.file for header in headers}

    def zeros(tensors: Sequence[FoundTensor]) -> Set[FoundTensor]:
        entries = [(by_name[found.file], files[found.file][found.name]) for found in tensors]
        return {found for found, is_zero in zip(tensors, _are_zero(entries), strict=True) if is_zero}

    resolution = resolve(uri, specs, files, zeros=zeros)

    def entry_of(found: FoundTensor) -> TensorEntry:
        return files[found.file][found.name]

    check_shapes(uri, specs, {name: entry_of(found).shape for name, found in resolution.tensors.items()})
    for tensor in stored_tensors(specs):
        check_dtype(uri, tensor, entry_of(resolution.tensors[tensor.name]))
    entries: dict[str, dict[str, TensorEntry]] = {file: {} for file in files}
    for name, found in resolution.tensors.items():
        entry = entry_of(found)
        is_transposed = name in sources and sources[name].is_transposed
        entries[found.file][name] = transposed_entry(entry) if is_transposed else entry
    names = {found.name: name for name, found in resolution.tensors.items()}
    for file, own in further.items():
        for part, entry in own.items():
            stored, first = entry.place_in(part)
            entries[file][part] = replace(entry, part_of=(names[stored], first))
    copies = []
    for number, (name, found) in enumerate(resolution.copies):
        first, entry = resolution.tensors[name], entry_of(found)
        if first.file == found.file and entry == entry_of(first):  # the same bytes
            continue
        copy = TensorCopy(name, first.file, first, COPY.format(number, name), found.file, found)
        if replace(entry, file="", begin=0, end=0) != replace(entry_of(first), file="", begin=0, end=0):
            raise unequal_copies(uri, copy)
        entries[found.file][copy.copy] = entry
        copies.append(copy)
    return ModelTensors(entries, tuple(copies), resolution)


def _are_zero(tensors: Sequence[tuple[OpenFile, TensorEntry]]) -> list[bool]:
    """Return of each tensor whether all of its numbers are zero; large ones are not read."""
    budget = RetryBudget(TransferLimits())

    def is_zero(pair: tuple[OpenFile, TensorEntry]) -> bool:
        file, entry = pair
        size, dtype = entry.end - entry.begin, DTYPES.get(entry.dtype_name)
        if dtype is None or size > MAX_ZEROS_BYTES:
            return False
        data = read_range(file.source, file.info, entry.begin, size, budget)
        return not np.frombuffer(data, dtype).astype(np.float32).any()

    with ThreadPoolExecutor(budget.limits.num_workers, thread_name_prefix="zeros") as pool:
        return list(pool.map(is_zero, tensors))


def unequal_copies(uri: str, copy: TensorCopy) -> MalformedCheckpoint:
    """Return the error that names two tensors, which mean one and differ."""
    first, second = copy.of, copy.found
    if first.file == second.file:
        places, remedy = f"{first.name!r} and {second.name!r} of {first.file}", "Save the model again without one."
    else:
        places = f"{first.name!r} of {first.file} and {second.name!r} of {second.file}"
        remedy = "Leave the files of a single model in this folder."
    reason = f"the files have two such tensors, {places}, and they differ. {remedy}"
    return MalformedCheckpoint(uri, copy.tensor, reason)


def stored_tensors(specs: Iterable[WeightSpec]) -> list[StoredTensor]:
    """Return the tensors of a checkpoint that weights are made from."""
    return [tensor for spec in specs for source in spec.sources for tensor in source.stored]


def merged(uri: str, parts: Iterable[Mapping[str, TensorEntry]]) -> dict[str, TensorEntry]:
    """Merge the entries of several files.

    Raises:
        MalformedCheckpoint: two files contain a tensor of the same name.
    """
    entries: dict[str, TensorEntry] = {}
    for part in parts:
        for name, entry in part.items():
            if name in entries:
                raise MalformedCheckpoint(uri, entry.file, f"{name!r} is in {entries[name].file} too.")
            entries[name] = entry
    return entries


def check_dtype(uri: str, tensor: StoredTensor, entry: TensorEntry) -> None:
    """Check that a tensor's dtype is one that the configuration allows.

    Raises:
        MalformedCheckpoint: the dtype is not supported, or not that of `quantization_config`.
    """
    if entry.dtype_name in tensor.dtypes:
        return
    reason = f"{tensor.name!r} is {entry.dtype_name}; "
    if tensor.dtypes in (WIDE, FLOATING, INTEGERS):
        raise MalformedCheckpoint(uri, entry.file, f"{reason}supported types are {', '.join(tensor.dtypes)}.")
    expected = " or ".join(tensor.dtypes)
    raise MalformedCheckpoint(uri, entry.file, f"{reason}quantization_config in config.json makes it {expected}.")


def check_tensors(uri: str, specs: Sequence[WeightSpec], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a checkpoint has the tensors of a model, in the right shapes, and no other that changes results.

    Args:
        uri: the checkpoint's address, for error messages.
        specs: the model's weights.
        shapes: the shape of each tensor of the checkpoint, by name.

    Raises:
        MalformedCheckpoint: a tensor is missing, has the wrong shape, or is unknown to the model.
    """
    tensors = resolve(uri, specs, {"": shapes}).tensors
    check_shapes(uri, specs, {name: shapes[found.name] for name, found in tensors.items()})


def check_shapes(uri: str, specs: Iterable[WeightSpec], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check the shapes of a model's tensors.

    Raises:
        MalformedCheckpoint: a tensor has the wrong shape.
    """
    sources = [source for spec in specs for source in spec.sources]
    for source in sources:
        if source.misfit:
            raise MalformedCheckpoint(uri, source.name, f"has shape {list(source.shape)}; {source.misfit}.")
    for tensor in (tensor for source in sources for tensor in source.stored):
        shape = shapes[tensor.name]
        if shape != tensor.shape and not (tensor.role in SCALES and _is_one(shape, tensor.shape)):
            reason = f"has shape {list(shape)}; config.json makes it {list(tensor.shape)}."
            raise MalformedCheckpoint(uri, tensor.name, reason)


def _is_one(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Return whether two shapes differ only by axes of size 1, as scales of a tensor or of rows are stored."""
    return [size for size in shape if size != 1] == [size for size in expected if size != 1]


def _read(file: OpenFile, budget: RetryBudget, room: HeaderRoom) -> Header:
    if file.info.name.endswith(SAFETENSORS_SUFFIX):
        header = read_header(file, budget, room)
    else:
        from service.weights.pickled.header import read_pickled_header  # few checkpoints are pickled

        header = read_pickled_header(file, budget)
    folder, slash, base = file.info.name.rpartition("/")
    # Modules after the model have a folder and a file each, with the same tensor names. A file with a single layer
    # contains only `weight` and `bias`, and is named after the layer.
    layer = f"{base.partition('.')[0]}." if header.entries.keys() <= {"weight", "bias"} else ""
    return replace(header, entries={f"{folder}{slash}{layer}{name}": entry for name, entry in header.entries.items()})
