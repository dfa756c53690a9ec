"""The devices of this host, which every start of a process shares, or those of another that it compiles for."""

import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from service.device.chips import TARGETS, Chip, Target
from service.device.gpu_target import target_config
from service.device.memory import Device
from service.errors import TargetUnavailable
from service.settings.compiler import describe_no_tpu

if TYPE_CHECKING:
    from service.compile.counter import CompileCounter
# The compiler of PTX, as which either version of CUDA has it; and the packages whose version is CUDA's, or about it.
CUDA_COMPILERS = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")
CUDA_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")


@dataclass(frozen=True)
class Devices:
    """The devices of this host, and the counter of what is compiled for them."""

    devices: tuple[Device, ...]
    compiles: "CompileCounter"


def use_target(name: str) -> Devices:
    """Have this process compile for another machine, and return that one's devices, on which nothing can run.

    libtpu compiles for any TPU without one, and XLA for a GPU. Such an executable has the form of one that was compiled
    on the device, and loads there if the versions of JAX and of the platform's packages are the same, which a bundle's
    key ensures. For a GPU's matrix products XLA takes the kernels that it has for want of timing them. Call this before
    jax looks for devices: it finds none but the CPU, which it would look beyond when it lowers for a GPU
    (jax-ml/jax#23971, jax-ml/jax#28376).

    Raises:
        TargetUnavailable: its compiler is not installed.

    Source: https://docs.jax.dev/en/latest/aot.html; MaxText, `train_compile.py`, trains with such executables for TPUs;
    jax-ml/jax#33542 tests that a GPU loads what was compiled without it.
    """
    describe_no_tpu()
    import jax
    from jax.experimental import topologies

    from service.compile.counter import CompileCounter

    jax.config.update("jax_platforms", "cpu")
    target = TARGETS[name]
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
        packages = " and ".join(CUDA_COMPILERS)
        reason = f"none of {packages} is installed, which compile for it. Install the extra `cuda12` or `cuda13`"
        raise TargetUnavailable(name, reason + ", that of the service's image, on Linux")
    return {"platform": "cuda", "topology": "1x1x1", "target_config": target_config(chip, versions[0])}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
