"""Reading of the tensor headers of a checkpoint's files, in safetensors or pickle format."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget
from service.weights.safetensors import Header, read_header

SAFETENSORS_SUFFIX = ".safetensors"
MODEL_PREFIX = "model."
BASE_PREFIXES = (MODEL_PREFIX, "transformer.")  # of the bare model's tensors in a model with a head


def read_headers(files: Sequence[OpenFile], budget: RetryBudget) -> list[Header]:
    """Read the headers of several objects in parallel.

    Raises:
        MalformedCheckpoint: a header does not describe the bytes that follow it.
        RefusedPickle: a pickle contains something other than tensors.
        ObjectChanged, TransferFailed: see `RangeReader`.
    """
    with ThreadPoolExecutor(min(len(files), budget.limits.num_workers), thread_name_prefix="header") as pool:
        return list(pool.map(lambda file: _read(file, budget), files))


def without_prefix(headers: Sequence[Header], expected_names: Iterable[str]) -> list[Header]:
    """Strip the `model.` prefix from tensor names unless the expected names have it.

    Checkpoints of a model with a head prefix the names of the bare model with `model.`; those of a bare model do not.
    """
    if any(name.startswith(MODEL_PREFIX) for name in expected_names):
        return list(headers)
    return [
        replace(header, entries={bare_name(name): entry for name, entry in header.entries.items()})
        for header in headers
    ]


def bare_name(name: str) -> str:
    """Return a tensor's name in the bare model."""
    prefix = next((prefix for prefix in BASE_PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


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
