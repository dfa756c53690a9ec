"""Decode steps with the flags of XLA whose worth only a device shows, each against the defaults of the same run."""

import subprocess
import sys
from pathlib import Path

from benchmarks.device_check.decode import measure
from benchmarks.device_check.report import Row, write_part

# Source: openxla/xla, xla/debug_options_flags.cc, and xla/pjrt/gpu/se_gpu_pjrt_client.cc (asynchronous dispatch).
OF_GPU = {
    "no command buffers": {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="},
    "asynchronous dispatch": {"PJRT_GPU_ENABLE_ASYNC_DISPATCH": "1"},
    "addresses of temporary buffers kept": {"XLA_FLAGS": "--xla_gpu_command_buffer_update_mode=SKIP_TEMP"},
    "no matrix products on Triton": {"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false"},
}
VARIANTS = {
    "gpu": OF_GPU,
    "tpu": {"32 MiB of VMEM for each kernel": {"LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=32768"}},
    "cpu": {"LLVM's third level": {"XLA_FLAGS": "--xla_backend_optimization_level=3"}},
}
# Flags of the benchmark itself, to compare in the same way.
OF_BENCHMARK = {"gpu": {"a step in parts": ["--in-parts"]}}
BATCHES = "1,32"


def main(out: Path, *, is_tiny: bool) -> None:
    """Measure the defaults and then each variant; one that XLA refuses is a row that fails."""
    flags = ["--context", "64" if is_tiny else "1024", "--batches", "1" if is_tiny else BATCHES]
    defaults = measure(out, flags, is_tiny=is_tiny)["batches"]
    rows: list[Row] = [{"check": "defaults", "passed": True, **_times(defaults)}]
    platform = _platform()
    variants = [(name, environment, []) for name, environment in VARIANTS[platform].items()]
    variants += [(name, {}, more) for name, more in OF_BENCHMARK.get(platform, {}).items()]
    for name, environment, more in variants:
        try:
            batches = measure(out, [*flags, *more], is_tiny=is_tiny, environment=environment)["batches"]
        except subprocess.CalledProcessError as error:
            rows.append({"check": name, "passed": False, "error": str(error)})
            continue
        speed = [old["ms_per_step"] / new["ms_per_step"] for old, new in zip(defaults, batches, strict=True)]
        gained = {f"speed, batch {new['batch']}": round(of, 3) for new, of in zip(batches, speed, strict=True)}
        rows.append({"check": name, "passed": True, **_times(batches), **gained})
    write_part(out, "flags", rows)


def _platform() -> str:
    """Return the platform of the machine's device; asked by a process that ends, and with it what it took of it."""
    ask = "import jax; print(jax.devices()[0].platform)"
    return subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()


def _times(batches: list[dict]) -> Row:
    return {f"ms a step, batch {batch['batch']}": batch["ms_per_step"] for batch in batches}


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
