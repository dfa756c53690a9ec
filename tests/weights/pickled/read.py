"""One file of pickled weights, read as a start reads it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from service.models.weight_spec import TensorSource, WeightSpec
from service.observability.progress import Progress
from service.storage.location import parse_location
from service.storage.source import open_source
from service.weights.headers import read_headers
from service.weights.safetensors import TensorEntry
from service.weights.stream import stream_weights

FLOAT32 = np.dtype(np.float32)


def spec_of(name: str, shape: tuple[int, ...]) -> WeightSpec:
    return WeightSpec(name, tuple("abcd"[: len(shape)]), shape, (TensorSource(name, shape, shape),))


def entries_of(folder: Path, content: bytes) -> Mapping[str, TensorEntry]:
    """Return what a file says about its tensors."""
    with _opened(folder, content) as opened:
        return read_headers(opened.files, opened.budget)[0].entries


def weights_of(folder: Path, content: bytes, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return weights that are streamed from a file, as float32."""
    with _opened(folder, content) as opened:
        specs = tuple(map(spec_of, shapes, shapes.values()))
        return stream_weights(specs, opened, max_staging_bytes=2**20).weights


def _opened(folder: Path, content: bytes):
    (folder / "pytorch_model.bin").write_bytes(content)
    source = open_source(parse_location(str(folder)), cache_root=folder / "cache")
    objects = source.list()
    return source.open_files(objects, objects, cache=None, progress=Progress())
