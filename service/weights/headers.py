"""The tensor headers of a checkpoint's files, in safetensors or pickle format, checked against a model's weights."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from service.errors import MalformedCheckpoint
from service.models.stored.layers import UNUSED_SCALES, WIDE, StoredTensor
from service.models.weight_spec import MODEL_PREFIX, WeightSpec, bare_name
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget
from service.weights.safetensors import Header, TensorEntry, read_header
from service.weights.stacked_experts import SINGLE, with_single_experts
from service.weights.strided import transposed_entry

SAFETENSORS_SUFFIX = ".safetensors"
# Tables, masks and xIELU's constants, which the model computes itself; BERT's pretraining head, which embeddings do not
# use; SigLIP's, which makes one vector of a picture.
UNUSED_SUFFIXES = (
    *UNUSED_SCALES,
    "encoder.embed_positions.weight",  # Whisper's: sines and cosines, which are computed
    *(".rotary_emb.inv_freq", "embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"),
    *(".attn.bias", ".attn.masked_bias", ".act_fn.beta", ".act_fn.eps"),
    "vision_tower.head.probe",
    *(f"vision_tower.head.attention.in_proj_{part}" for part in ("weight", "bias")),
    *(
        f"vision_tower.head.{layer}.{part}"
        for layer in ("attention.out_proj", "layernorm", "mlp.fc1", "mlp.fc2")
        for part in ("weight", "bias")
    ),
)


def read_headers(files: Sequence[OpenFile], budget: RetryBudget) -> list[Header]:
    """Read the headers of several objects in parallel.

    Raises:
        MalformedCheckpoint: a header does not describe the bytes that follow it.
        RefusedPickle: a pickle contains something other than tensors.
        ObjectChanged, TransferFailed: see `RangeReader`.
    """
    with ThreadPoolExecutor(min(len(files), budget.limits.num_workers), thread_name_prefix="header") as pool:
        return list(pool.map(lambda file: _read(file, budget), files))


def entries_of(specs: Sequence[WeightSpec], headers: Sequence[Header]) -> dict[str, Mapping[str, TensorEntry]]:
    """Return the tensors of each object, by its name, under the names that a model's weights have for them.

    Raises:
        MalformedCheckpoint: they do not match the model.
    """
    sources = {source.name: source for spec in specs for source in spec.sources}
    uri, entries = headers[0].file.source.uri, {header.file.info.name: header.entries for header in headers}
    # Checkpoints of a model with a head prefix the names of the bare model; those of a bare model do not.
    if not any(source.startswith(MODEL_PREFIX) for source in sources):
        entries = {file: {bare_name(name): entry for name, entry in own.items()} for file, own in entries.items()}
    if any(SINGLE in source for source in sources):
        entries = {file: with_single_experts(uri, own) for file, own in entries.items()}
    tensors = merged(uri, entries.values())
    check_tensors(uri, specs, {name: entry.shape for name, entry in tensors.items()})
    for tensor in stored_tensors(specs):
        check_dtype(uri, tensor, tensors[tensor.name])
    return {
        file: {
            name: transposed_entry(entry) if name in sources and sources[name].is_transposed else entry
            for name, entry in own.items()
        }
        for file, own in entries.items()
    }


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
    if tensor.dtypes == WIDE:
        raise MalformedCheckpoint(uri, entry.file, f"{reason}supported types are {', '.join(WIDE)}.")
    expected = " or ".join(tensor.dtypes)
    raise MalformedCheckpoint(uri, entry.file, f"{reason}quantization_config in config.json makes it {expected}.")


def check_tensors(uri: str, specs: Iterable[WeightSpec], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a checkpoint has exactly the tensors of a model, in the right shapes.

    Args:
        uri: the checkpoint's address, for error messages.
        specs: the model's weights.
        shapes: the shape of each tensor of the checkpoint, by name.

    Raises:
        MalformedCheckpoint: a tensor is missing, has the wrong shape, or is unknown to the model.
    """
    for source in (source for spec in specs for source in spec.sources):
        if source.misfit:
            raise MalformedCheckpoint(uri, source.name, f"has shape {list(source.shape)}; {source.misfit}.")
    tensors = {tensor.name: tensor for tensor in stored_tensors(specs)}
    for name, tensor in tensors.items():
        if name not in shapes:
            raise MalformedCheckpoint(uri, name, f"is missing. config.json asks for it in shape {list(tensor.shape)}.")
        if shapes[name] != tensor.shape and not (tensor.role == "scales" and _is_one(shapes[name], tensor.shape)):
            raise MalformedCheckpoint(
                uri, name, f"has shape {list(shapes[name])}; config.json makes it {list(tensor.shape)}."
            )
    # With tied embeddings, some writers store the same table twice; only the embedding is used.
    is_tied = "lm_head.weight" not in tensors
    spare = [name for name in shapes if name not in tensors and not name.endswith(UNUSED_SUFFIXES)]
    spare = [name for name in spare if not (name == "lm_head.weight" and is_tied)]
    if spare:
        raise MalformedCheckpoint(
            uri,
            spare[0],
            f"{len(spare)} tensors such as this one have no place in the model that config.json describes, "
            "so the answers would be wrong. Check model_type and the bias, norm and layer settings there.",
        )


def _is_one(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Return whether two shapes differ by axes of size 1 alone, as scales of a tensor or of rows are stored."""
    return [size for size in shape if size != 1] == [size for size in expected if size != 1]


def _read(file: OpenFile, budget: RetryBudget) -> Header:
    if file.info.name.endswith(SAFETENSORS_SUFFIX):
        header = read_header(file, budget)
    else:
        from service.weights.pickled.header import read_pickled_header  # few checkpoints are pickled

        header = read_pickled_header(file, budget)
    folder, slash, base = file.info.name.rpartition("/")
    # Modules after the model have a folder and a file each, with the same tensor names. A file with a single layer
    # contains only `weight` and `bias`, and is named after the layer.
    layer = f"{base.partition('.')[0]}." if header.entries.keys() <= {"weight", "bias"} else ""
    return replace(header, entries={f"{folder}{slash}{layer}{name}": entry for name, entry in header.entries.items()})
