"""The steps of every family compile for machines that are not there, or the reference attention is named with a reason.

`make test-all` installs the compilers into `.tools/targets`; without one its tests are skipped.
"""

import json
import os
import subprocess

import pytest

from tests.device_targets.test_compiled_steps import ROOT, target_python
from tests.parity.family_cases import FAMILY_CASES, MXFP4_CASE

CASES = (*FAMILY_CASES, MXFP4_CASE)
# On a TPU the kernel takes no sinks.
WITHOUT_KERNEL = {
    "l4": {},
    "v6e-1": dict.fromkeys(("gpt_oss", "gpt_oss_mxfp4"), "it does not take sinks"),
}
# Of 256 dimensions, and of 512.
WIDE_HEADS = {"gemma", "gemma2", "gemma3", "gemma4", "gemma4_experts", "gemma4_shared", "gemma4_values"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("platform", "target", "kernel"), [("gpu", "l4", "triton"), ("tpu", "v6e-1", "ragged")])
def test_the_steps_of_every_family_compile(platform: str, target: str, kernel: str):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [target_python(platform), "-m", "tests.device_targets.compile_families", target]
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    report = json.loads(process.stdout)
    assert report.keys() == {case.name for case in CASES}
    for name, facts in report.items():
        assert facts["obstacle"] == WITHOUT_KERNEL[target].get(name), name
        own = "kv8" if platform == "tpu" and name in WIDE_HEADS else kernel
        assert facts["kernel"] == ("reference" if facts["obstacle"] else own), name
        for kind in ("embed", "layers", "sample"):
            assert any(program.startswith(kind) for program in facts["programs"]), (name, kind)
