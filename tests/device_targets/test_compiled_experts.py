"""Decode steps with experts are few kernels of a GPU, in one graph.

`make test-all` installs the compilers into `.tools/targets`; without one its tests are skipped.
"""

import json
import os
import subprocess

import pytest

from tests.device_targets.test_compiled_steps import ROOT, target_python

MOST_KERNELS = 30  # of a layer; one without experts has 12


MOST_BESIDE_BYTES = 100 * 2**20  # logits and tokens: the experts of a layer alone are wider in bfloat16


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("platform", "target", "model"),
    [
        ("gpu", "h100", "Qwen3 30B-A3B"),
        ("gpu", "l4", "Qwen3 30B-A3B, 4 bits"),
        ("gpu", "l4", "gpt-oss 20B"),
        ("gpu12", "l4", "gpt-oss 20B"),
    ],
)
def test_a_layer_with_experts_has_few_kernels_and_no_loop_and_widens_none_in_memory(
    platform: str, target: str, model: str
):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [target_python(platform), "-m", "tests.device_targets.compile_experts", target, model, "1", "16", "64"]
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    report = json.loads(process.stdout)
    assert report.keys() == {"1", "16", "64"}
    for num_seqs, facts in report.items():
        assert facts["loops"] == 0, num_seqs
        assert facts["temp_bytes"] < MOST_BESIDE_BYTES
        assert facts["kernels_of_layer"] <= MOST_KERNELS, (num_seqs, facts)
