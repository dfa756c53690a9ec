"""The kernels that XLA chooses by timing them while the service prewarms, as a file for service/device/tunings.

python -m benchmarks.device_check.tunings written.textproto        # `levserve prewarm`, and what XLA chose
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from benchmarks.device_check.report import Row
from service.device.gpu_target import PROCESSORS
from service.device.tunings import FOLDER, file_name, sealed

# A program of its own, since XLA reads such a file once a process; it fails if XLA cannot read it.
LOAD = """
import jax, json, sys
lowered = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((64, 64), "bfloat16"))
lowered.compile({"xla_gpu_load_autotune_results_from": sys.argv[1], "xla_dump_to": sys.argv[2]})
print(json.dumps(jax.local_devices()[0].device_kind))
"""
# What XLA tells GPUs apart by, so that tunings of a device serve its target.
DESCRIBED = {
    "core_count": "cores",
    "memory_bandwidth": "bytes_per_s",
    "l2_cache_size": "cache_bytes",
    "clock_rate_ghz": "clock_ghz",
}


def main(written: Path) -> NoReturn:
    """Prewarm with the settings of the environment."""
    from service.settings.compiler import set_flag

    set_flag(f"--xla_gpu_dump_autotune_results_to={written}")
    import jax

    from service.settings.sources import load_settings
    from service.start.prewarm import prewarm

    code = prewarm(load_settings({}, None))
    # XLA writes the file after each compilation, in parallel ones at once: here once more, alone.
    jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), "float32")).compile()
    sys.exit(code)


def keep(written: Path, out: Path) -> list[Row]:
    """Leave a file to be kept, if XLA has written one and reads it, and compare XLA's description of the GPU."""
    if not written.exists():
        return [{"check": "tunings", "passed": True, "note": "XLA times no kernels here"}]
    with tempfile.TemporaryDirectory() as dump:
        loaded = subprocess.run(
            [sys.executable, "-c", LOAD, str(written), dump], capture_output=True, text=True, check=False
        )
        if loaded.returncode:
            return [{"check": "tunings", "passed": False, "note": loaded.stderr[-300:]}]
        [description] = [path.read_text() for path in Path(dump).glob("*.gpu_target_config.pbtxt")]
    kind = json.loads(loaded.stdout.splitlines()[-1])
    path = out / file_name(kind)
    path.write_bytes(sealed(written.read_bytes(), kind))
    note = f"{path} is to be kept in {FOLDER.parent.name}/{FOLDER.name}"
    rows: list[Row] = [{"check": "tunings", "passed": True, "note": note}]
    if kind in PROCESSORS:
        differing = differences(description, kind)
        rows.append({"check": "description of the target", "passed": not differing, "note": "; ".join(differing)})
    return rows


def differences(description: str, device_kind: str) -> list[str]:
    """Return in what XLA's description of a GPU differs from that of the target of its kind."""
    found = {name: float(value) for name, value in re.findall(r"^\s*(\w+): ([\d.]+)$", description, re.MULTILINE)}
    expected = PROCESSORS[device_kind]._asdict()
    return [
        f"{name} is {found.get(name)}, not {expected[field]}"
        for name, field in DESCRIBED.items()
        if found.get(name) != expected[field]
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
