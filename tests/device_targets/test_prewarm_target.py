"""Bundles that are made without the device."""

import json
import os
import subprocess

import pytest

from service.device.chips import TARGETS
from service.errors import TargetUnavailable
from service.start import devices
from service.start.devices import use_target
from tests.device_targets.test_compiled_steps import target_python

SMALL = {"MAX_NUM_SEQS": "1", "MAX_MODEL_LEN": "256", "MAX_PREFILL_TOKENS": "16"}


GPUS = [name for name, target in TARGETS.items() if target.chip.platform == "gpu"]


@pytest.mark.parametrize("target", GPUS)
def test_a_gpu_is_refused_where_nothing_compiles_for_it(target, monkeypatch):
    monkeypatch.setattr(devices, "CUDA_COMPILERS", ("no-such-compiler",))
    with pytest.raises(TargetUnavailable, match=f"--target {target}: .* no-such-compiler .* extra `cuda12`") as error:
        use_target(target)
    assert error.value.target == target


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", ["v5e-1", "v6e-8", *GPUS])
def test_a_bundle_is_made_without_the_device_and_found_by_its_key(target, tmp_path):
    chip = TARGETS[target].chip
    assert levserve(target, tmp_path, "--check")["outcome"] == "miss"
    made = levserve(target, tmp_path)
    found = levserve(target, tmp_path, "--check")
    assert (made["outcome"], found["outcome"]) == ("made", "hit")
    assert made["key"] == found["key"]
    [manifest] = tmp_path.rglob("manifest.json")
    inputs = json.loads(manifest.read_text())["inputs"]
    assert inputs["device_kind"] == chip.device_kind
    assert ("libtpu" if chip.platform == "tpu" else "jax-cuda13-plugin") in inputs["packages"]
    assert len(inputs["mesh"]["device_ids"]) == inputs["num_devices"]
    assert inputs.get("has_timed_kernels") == (False if chip.platform == "gpu" else None)


def levserve(target, cache, *flags):
    """Run the command in a process that has the compiler, and return the facts that it prints last."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    variables |= SMALL | {"LOCAL_MODEL_CACHE": str(cache)}
    command = [target_python(TARGETS[target].chip.platform), "-m", "service", "prewarm", "--target", target, *flags]
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode in (0, 1), process.stderr[-3000:]
    assert process.stdout, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])
