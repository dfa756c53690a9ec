"""The real kernel on this machine's GPU, with the cases of the device check."""

import json
import os
import subprocess
import sys

import pytest

from service.device.memory import expects_cpu


@pytest.mark.gpu
@pytest.mark.skipif(expects_cpu(("nvidia[0-9]*",)), reason="this machine has no GPU")
@pytest.mark.timeout(600)
def test_the_kernel_gives_what_the_reference_gives(tmp_path):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "benchmarks.device_check.kernels", str(tmp_path)]
    subprocess.run(command, env=variables, check=True)
    rows = json.loads((tmp_path / "kernels.json").read_text())["rows"]
    assert [row for row in rows if not row["passed"] or row["kernel"] != "triton"] == []
