"""The exit from Pallas' Triton backend stays open: Mosaic GPU compiles what attention needs, on GPUs before Hopper too.

`make test-all` installs the compilers into `.tools/targets`; without one its tests are skipped.
"""

import json
import os
import subprocess

import pytest

from tests.device_targets.test_compiled_steps import ROOT, target_python


@pytest.mark.slow
@pytest.mark.parametrize("target", ["l4", "h100"])
def test_pages_are_multiplied_on_tensor_cores(target):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [target_python("gpu"), "-m", "tests.device_targets.compile_mosaic", target]
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    assert json.loads(process.stdout.splitlines()[-1]) == {"compiled": True, "error": ""}
