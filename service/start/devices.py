"""The devices of this host, shared by all starts of a process, or those of a cross-compilation target."""

import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from service.device.chips import TARGETS, Chip, Target
from service.device.gpu_target import target_config
from service.device.memory import Device
from service.errors import TargetUnavailable
from service.settings.compiler import describe_no_tpu, estimate_tiles

if TYPE_CHECKING:
    from service.compile.counter import CompileCounter

# Packages of the PTX compiler and of the CUDA runtime, whose versions follow CUDA's, for CUDA 13 and 12.
CUDA_COMPILERS = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")
CUDA_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")


@dataclass(frozen=True)
class Devices:
    """Devices and a counter of compilations for them."""

    devices: tuple[Device, ...]
    compiles: "CompileCounter"


def use_target(name: str) -> Devices:
    """Make this process cross-compile for another machine, and return its devices, on which nothing can run.

    libtpu can compile for any TPU without one, and so can XLA for a GPU. Such an executable loads on the device if the
    versions of JAX and of the platform's packages are the same, which a bundle's key ensures. Without the GPU, XLA
    cannot autotune matrix products and uses default kernels. Call this before jax looks for devices: it restricts jax
    to the CPU, because lowering for a GPU would otherwise look for one (jax-ml/jax#23971, jax-ml/jax#28376).

    Raises:
        TargetUnavailable: the target's compiler is not installed.

    Source: https://docs.jax.dev/en/latest/aot.html; MaxText, `train_compile.py`, trains with such executables for TPUs;
    jax-ml/jax#33542 tests that a GPU loads an executable compiled without it.
    """
    describe_no_tpu()
    import jax
    from jax.experimental import topologies

    from service.compile.counter import CompileCounter

    jax.config.update("jax_platforms", "cpu")
    target = TARGETS[name]
    if target.chip.platform == "gpu":
        estimate_tiles()
    options = _gpu_options(name, target.chip) if target.chip.platform == "gpu" else _tpu_options(target)
    try:
        description = topologies.get_topology_desc(**options)
    except RuntimeError as error:
        extras = "`cuda12` or `cuda13`" if target.chip.platform == "gpu" else "`tpu`"
        raise TargetUnavailable(name, f"{error}. Install the extra {extras}, on Linux for x86-64") from error
    jax.config.update("jax_default_device", description.devices[0])
    return Devices(tuple(description.devices), CompileCounter())


def _tpu_options(target: Target) -> dict[str, Any]:
    return {
        "platform": "tpu",
        "topology_name": target.topology,
        "chips_per_host_bounds": target.chips_of_host,
    }


def _gpu_options(name: str, chip: Chip) -> dict[str, Any]:
    compilers, runtimes = (list(filter(None, map(_version, names))) for names in (CUDA_COMPILERS, CUDA_RUNTIMES))
    versions = [*runtimes, *compilers]
    if not versions or not (compilers or shutil.which("ptxas")):
        packages = " nor ".join(CUDA_COMPILERS)
        reason = f"neither {packages} is installed. Install the extra `cuda12` or `cuda13`, as in the service's image,"
        raise TargetUnavailable(name, f"{reason} on Linux")
    return {"platform": "cuda", "topology": "1x1x1", "target_config": target_config(chip, versions[0])}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
