"""Bundles that are made without the device."""

import json
import os
import subprocess

import pytest

from service.device.chips import TARGETS
from service.errors import TargetUnavailable
from service.start.devices import use_target
from tests.device_targets.test_compiled_steps import target_python

SMALL = {"MAX_NUM_SEQS": "1", "MAX_MODEL_LEN": "256", "MAX_PREFILL_TOKENS": "16"}


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target.chip.platform == "gpu"])
def test_a_gpu_is_refused_with_what_is_missing(target):
    with pytest.raises(TargetUnavailable, match=f"--target {target}: .* timing them on it, .* driver") as error:
        use_target(target)
    assert error.value.target == target


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", ["v5e-1", "v6e-8"])
def test_a_bundle_for_a_tpu_is_made_without_one_and_found_by_its_key(target, tmp_path):
    assert levserve(target, tmp_path, "--check")["outcome"] == "miss"
    made = levserve(target, tmp_path)
    found = levserve(target, tmp_path, "--check")
    assert (made["outcome"], found["outcome"]) == ("made", "hit")
    assert made["key"] == found["key"]
    [manifest] = tmp_path.rglob("manifest.json")
    inputs = json.loads(manifest.read_text())["inputs"]
    assert inputs["device_kind"] == TARGETS[target].chip.device_kind
    assert "libtpu" in inputs["packages"]
    assert len(inputs["mesh"]["device_ids"]) == inputs["num_devices"]


def levserve(target, cache, *flags):
    """Run the command in a process that has the compiler, and return the facts that it prints last."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    variables |= SMALL | {"LOCAL_MODEL_CACHE": str(cache)}
    command = [target_python("tpu"), "-m", "service", "prewarm", "--target", target, *flags]
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode in (0, 1), process.stderr[-3000:]
    assert process.stdout, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])
