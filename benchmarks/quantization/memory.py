"""What weights and KV cache take, as a start plans and allocates them."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks.quantization.ways import AVX2_FLOAT32, AVX2_INT8, WAYS, way_settings
from service.checkpoint.discover import locate
from service.settings import Settings
from service.start.kinds.decoder import position_bytes
from service.start.kinds.engine_spec import EngineSpec, choose_engine_spec
from service.storage.local import LocalSource
from service.storage.location import LocalLocation, Location


def measure_memory(
    checkpoint: Path, options: argparse.Namespace, found: dict[str, Any], _save: Callable[[], None]
) -> None:
    """Plan each way, as many sequences of the same length."""
    for way in WAYS:
        if way not in (AVX2_FLOAT32, AVX2_INT8):
            found[way] = _planned(checkpoint, way_settings(way, is_quick=options.quick))


def _planned(checkpoint: Path, way: Mapping[str, str]) -> dict[str, int]:
    """Return bytes of the weights and of the KV cache."""
    settings = {name.lower(): value for name, value in way.items()}
    spec = choose_engine_spec(
        Settings.model_validate(settings), locate(str(checkpoint), _open_local), jax.devices()[:1]
    )
    assert isinstance(spec, EngineSpec)
    of_token = spec.config.kv_bytes_per_token(
        lambda attention: position_bytes(attention, spec.kernel, spec.mesh, spec.formats.kv_dtype)
    )
    shapes = spec.shapes
    return {
        "weights_bytes": spec.weights_bytes,
        "kv_bytes": shapes.num_pages * shapes.page_size * of_token,
        "kv_pages": shapes.num_pages,
    }


def _open_local(location: Location) -> LocalSource:
    assert isinstance(location, LocalLocation), "the checkpoint is on this machine"
    return LocalSource(location)
