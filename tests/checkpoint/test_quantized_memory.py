"""Weights that are quantized while they arrive: nothing of the wide ones is kept."""

import json
import shutil
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.process import run_on_devices
from tests.served import DEMO, demo_tensors

MIB = 1024 * 1024
MLP_SIZE = 180_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process its peak")
def test_loading_in_int8_takes_half_a_gibibyte_besides_the_weights(tmp_path: Path):
    shutil.copytree(DEMO, tmp_path, dirs_exist_ok=True)
    values = np.random.default_rng(0).standard_normal(1024 * 1024, np.float32).astype(ml_dtypes.bfloat16)
    tensors = demo_tensors()
    for name, tensor in tensors.items():
        if ".mlp." in name:
            shape = (tensor.shape[0], MLP_SIZE) if "down" in name else (MLP_SIZE, tensor.shape[1])
            tensors[name] = np.resize(values, shape)
    wide_bytes = sum(tensor.nbytes for tensor in tensors.values())
    save_file(tensors, tmp_path / "model.safetensors")
    del tensors
    config = json.loads((DEMO / "config.json").read_text()) | {"intermediate_size": MLP_SIZE}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = run_on_devices("tests.checkpoint.load_memory_process", str(tmp_path), num_devices=1)
    assert 0.5 < found["weights_bytes"] / wide_bytes < 0.52
    assert wide_bytes > 1024 * MIB  # twice the bound, so that keeping them would show
    assert found["above_bytes"] < 512 * MIB
