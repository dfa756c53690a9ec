"""A bundle that was made as on a machine without the device is found by a start on it, and every executable loads."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.device_check.model import FOLDER
from benchmarks.device_check.report import Row, write_part
from benchmarks.device_check.starts import settings_of, start_once, time_command
from service.device.chips import TARGETS

ASK = "import jax, json; d = jax.local_devices(); print(json.dumps([d[0].device_kind, len(d)]))"


def main(out: Path, *, is_tiny: bool) -> None:
    """Make the bundle into a cache of its own, and start with that."""
    name = _target()
    if name is None:
        note = "no target of `levserve prewarm` is this machine"
        write_part(out, "target", [{"check": "bundle without the device", "passed": True, "note": note}])
        return
    settings = settings_of(out, is_tiny=is_tiny) | {"LOCAL_MODEL_CACHE": str(out / "cache_of_target")}
    environment = os.environ | {"MODEL_URI": str(out / FOLDER)} | settings
    made = time_command(f"prewarm --target {name}", ["prewarm", "--target", name], environment)
    rows: list[Row] = [made, start_once("start with it", environment, None)]
    write_part(out, "target", rows)


def _target() -> str | None:
    """Return the target that is this machine; asked by a process that ends, and with it what it took of the device."""
    asked = subprocess.run([sys.executable, "-c", ASK], check=True, capture_output=True, text=True)
    kind, number = json.loads(asked.stdout)
    for name, target in TARGETS.items():
        if target.chip.device_kind == kind and number == (math.prod(target.chips_of_host) if target.topology else 1):
            return name
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
