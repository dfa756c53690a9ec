"""Kept tunings as XLA takes them: a product has the tiles of the file, and what the file cannot give is cuBLASLt's.

`make test-all` installs the compiler into `.tools/targets`; without it the tests are skipped.
"""

import json
import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from service.device.chips import H100
from service.device.tunings import file_name, sealed
from tests.device_targets.test_compiled_steps import ROOT, target_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# XLA's names of the H100, of the product of 512 tokens in `compile_tuned`, and of its Triton. The first two are the
# path at which XLA looks for a result with the option `xla_gpu_per_fusion_autotune_cache_dir`, as `strace` shows.
JAXLIB = "0.11.2"
WRITTEN = b"""entries {
  key {
    target { device: "699b92c0fb30cb16" hlo_fingerprint: "6595dadd3cbf8c1cee216f06743e855a" }
    environment { codegen_version: "0000000000000000" }
  }
  value {
    optimal_config {
      backend: TRITON
      backend_config {
        triton { block_m: 128 block_n: 256 block_k: 64 num_stages: 3 num_warps: 8 num_ctas: 1 }
      }
    }
    optimal_backend_version: "a77e7c793abc0d0c923a9afb275058e2fe57a198"
  }
}
"""
CUBLAS = {"tiles": [], "cublas": 1}


def compiled(folder: Path) -> tuple[dict, str]:
    """Return the kernels of a process that has the compiler, and its log."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [target_python("gpu"), "-m", "tests.device_targets.compile_tuned", str(folder)]
    process = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout), process.stderr


@pytest.mark.skipif(version("jaxlib") != JAXLIB, reason=f"the names are those of XLA in jaxlib {JAXLIB}")
def test_a_product_in_the_file_has_its_tiles_and_another_is_cublas(tmp_path):
    (tmp_path / file_name(H100.device_kind)).write_bytes(sealed(WRITTEN, H100.device_kind))
    kernels, log = compiled(tmp_path)
    assert kernels == {"tuned": {"tiles": [[128, 256]], "cublas": 0}, "untuned": CUBLAS}
    assert log.count("the kept tunings do not suffice") == 1
    assert "ignored" not in log


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (sealed(WRITTEN, H100.device_kind)[:-3], "are ignored: it is truncated or was changed"),
        (b"nonsense", "are ignored: it does not begin"),
        # Sealed by somebody who has not had XLA read it.
        (sealed(b"nonsense", H100.device_kind), "the kept tunings do not suffice"),
        (sealed(b"version: 2\n", H100.device_kind), "the kept tunings do not suffice"),
    ],
)
def test_with_a_bad_file_everything_is_compiled_as_without_one(data, line, tmp_path):
    (tmp_path / file_name(H100.device_kind)).write_bytes(data)
    kernels, log = compiled(tmp_path)
    assert kernels == {"tuned": CUBLAS, "untuned": CUBLAS}
    assert line in log
