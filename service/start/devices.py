"""The devices of this host, which every start of a process shares, or those of another that it compiles for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.device.chips import TARGETS
from service.device.memory import Device
from service.errors import TargetUnavailable
from service.settings.compiler import describe_no_tpu

if TYPE_CHECKING:
    from service.compile.counter import CompileCounter
# Without one, XLA compiles for it and serializes what it made, and JAX tests that a GPU of the same kind loads that
# (jax-ml/jax#33542). But its matrix products are then of the kernels that it has for want of measurements, and the
# bundle's key has the versions of the driver and of CUDA that JAX reports of a device alone. With `jax_platforms` unset
# JAX looks for the GPU when it lowers (jax-ml/jax#23971, jax-ml/jax#28376).
GPU_OBSTACLE = (
    "XLA chooses a GPU's matrix kernels by timing them on it, and a start on a GPU takes only a bundle that was made "
    "with its driver and its CUDA platform's version, which no compiler without one knows (jax-ml/jax#23971, #28376). "
    "Run `levserve prewarm` on a machine that has one"
)


@dataclass(frozen=True)
class Devices:
    """The devices of this host, and the counter of what is compiled for them."""

    devices: tuple[Device, ...]
    compiles: "CompileCounter"


def use_target(name: str) -> Devices:
    """Have this process compile for another machine, and return that one's devices, on which nothing can run.

    libtpu compiles for any TPU without one. Such an executable has the form of one that was compiled on the chip, and
    loads there if the versions of JAX and libtpu are the same, which a bundle's key ensures. Call this before jax looks
    for devices: it finds none but the CPU.

    Raises:
        TargetUnavailable: its programs are not compiled without it, or its compiler is not installed.

    Source: https://docs.jax.dev/en/latest/aot.html; MaxText, `train_compile.py`, trains with such executables.
    """
    target = TARGETS[name]
    if target.chip.platform == "gpu":
        raise TargetUnavailable(name, GPU_OBSTACLE)
    describe_no_tpu()
    import jax
    from jax.experimental import topologies

    from service.compile.counter import CompileCounter

    jax.config.update("jax_platforms", "cpu")
    try:
        description = topologies.get_topology_desc(
            target.topology, platform="tpu", chips_per_host_bounds=target.chips_of_host
        )
    except RuntimeError as error:
        raise TargetUnavailable(name, f"{error}. Install the extra `tpu`, on Linux for x86-64") from error
    jax.config.update("jax_default_device", description.devices[0])
    return Devices(tuple(description.devices), CompileCounter())
