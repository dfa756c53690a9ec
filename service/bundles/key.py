"""The key of a bundle: all inputs that can affect its native code. Starts with equal keys share a bundle."""

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from service.device.memory import Device, is_absent
from service.device.native.library import native_code
from service.device.tunings import kept_tunings
from service.device.widened_tokens import widened_tokens
from service.settings.compiler import compiler_variables

# Options of jax that change traces or compiled code.
JAX_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
    "jax_default_dtype_bits",
    "jax_disable_most_optimizations",
)
# Packages that trace or compile, or whose objects are pickled.
PROJECT = "levserve"
PACKAGES = ("jax", "jaxlib", "numpy", "marin-haliax", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu")
# Libraries whose kernels and heuristics XLA builds into a GPU's executables, for either version of CUDA.
CUDA_PACKAGES = (
    *("nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-cuda-nvcc-cu12"),
    *("nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cuda-nvcc"),
)
CPU_INFO = Path("/proc/cpuinfo")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
# Inputs that are unknown when compiling without the GPU. Autotuning needs the device, so kernels are not timed.
WITHOUT_GPU: Mapping[str, Any] = {"driver": "any", "has_timed_kernels": False}


@dataclass(frozen=True)
class BundleKey:
    """The inputs in readable form, and a digest of all of them."""

    inputs: Mapping[str, Any]  # plain JSON

    def __post_init__(self) -> None:
        # Normalizes tuples to lists, as in a manifest.
        object.__setattr__(self, "inputs", json.loads(json.dumps(self.inputs)))

    @cached_property
    def digest(self) -> str:
        """The name of the bundle."""
        text = json.dumps(self.inputs, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    @property
    def without_device(self) -> "BundleKey | None":
        """The key of the bundle compiled without the device; None if it is the same key or this is that key."""
        if self.inputs.get("platform") != "gpu" or WITHOUT_GPU.items() <= self.inputs.items():
            return None
        return BundleKey({**self.inputs, **WITHOUT_GPU})

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Return the names of the inputs that differ in another bundle, to explain a miss."""
        names = sorted({*self.inputs, *other})
        return [name for name in names if self.inputs.get(name) != other.get(name)]


def machine_inputs(devices: Sequence[Device]) -> dict[str, Any]:
    """Return the inputs that depend on the machine, its packages and this project's version."""
    first = devices[0]
    inputs = {
        "service": _version(PROJECT) or "not installed",  # run from source, whose digest is a separate input
        "python": ".".join(platform.python_version_tuple()[:2]),  # pickles depend on it
        "packages": {name: text for name in PACKAGES if (text := _version(name))},
        "variables": compiler_variables(),
        "jax_options": {name: str(jax.config.values.get(name)) for name in JAX_OPTIONS},
        "platform": first.platform,
        "device_kind": first.device_kind,
        "num_devices": len(devices),
    }
    if first.platform == "cpu":
        num_cpus = len(os.sched_getaffinity(0))
        inputs |= {"cpu_features": _cpu_features(), "num_cpus": num_cpus, "native_code": native_code()}
    if first.platform == "gpu":
        inputs["cuda_packages"] = {name: text for name in CUDA_PACKAGES if (text := _version(name))}
        tunings = kept_tunings(first.device_kind)
        inputs["tunings"] = None if tunings is None else tunings.sha256
        inputs["widened_tokens"] = widened_tokens(first)
        inputs |= WITHOUT_GPU if is_absent(first) else {"driver": _driver_version(), "has_timed_kernels": True}
    else:  # constant in a GPU plugin, whose version is among the packages
        inputs["platform_version"] = first.client.platform_version
    return inputs


def source_digest(root: Path, names: Iterable[str]) -> str:
    """Return a digest of Python files below `root`; a folder means all files in it."""
    digest, num_chars_of_root = hashlib.sha256(), len(f"{root}/")
    for name in names:
        path = root / name
        # Sorted and cut as texts, for which `Path` takes five times as long: a start reads two hundred files.
        for file in sorted(map(str, path.rglob("*.py"))) if path.is_dir() else [str(path)]:
            digest.update(f"{file[num_chars_of_root:]}\0".encode())
            digest.update(hashlib.sha256(Path(file).read_bytes()).digest())
    return digest.hexdigest()


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _driver_version() -> str:
    """Return the version of NVIDIA's kernel module, such as 535.216.01.

    Source: https://download.nvidia.com/XFree86/Linux-x86_64/535.216.01/README/procinterface.html
    """
    try:
        text = NVIDIA_DRIVER.read_text()
    except OSError:
        return "unknown"
    return next((word for word in text.split() if word.replace(".", "").isdigit() and "." in word), "unknown")


@cache
def _cpu_features() -> str:
    """Return the instruction sets that the compiler may use. Source: proc(5); `flags` on x86, `Features` on Arm."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return " ".join(sorted(value.split()))
    return platform.machine()
