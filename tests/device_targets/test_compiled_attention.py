"""Attention of decode steps, compiled for GPUs that are not there: a list, the kernel and a join, and no spills.

`make test-all` installs the compiler into `.tools/targets`; without it the tests are skipped.
"""

import json
import os
import subprocess

import pytest

from tests.device_targets.test_compiled_steps import ROOT, target_python

SPILLED_BYTES = 64  # with which a kernel in 8 bits, which widens what it reads, may make do
MOST_PARTS_BYTES = 40 * 2**20  # of 64 sequences


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", ["l4", "h100", "rtx-pro-6000"])
def test_attention_of_a_decode_step_is_few_kernels_that_do_not_spill(target: str):
    report = compile_attention(target)
    for name, facts in report.items():
        kernels = facts["kernels"]
        assert {"paged_attention", "join_splits"} <= set(kernels)
        assert len(kernels) <= 4, (name, kernels)  # those of the list are XLA's, and run once a step
        most = SPILLED_BYTES if name in ("int8", "fp8") else 0
        assert [kernel for kernel, of in kernels.items() if of["spilled_bytes"] > most] == [], (name, kernels)
        # Keys and values of the next tiles arrive while products of this one are computed, on tensor cores.
        attention = kernels["paged_attention"]
        assert attention["async_copies"] >= 7, (name, attention)
        assert attention["products"] > 0
        assert facts["temp_bytes"] <= MOST_PARTS_BYTES


def compile_attention(target: str) -> dict:
    """Compile in a process that has the compiler."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [target_python("gpu"), "-m", "tests.device_targets.compile_attention", target]
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout)
