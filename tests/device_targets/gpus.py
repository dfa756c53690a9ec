"""GPUs as XLA describes them to its compiler, for compilation without one; the kernels that it would time are defaults.

Source: https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs (H100, RTX PRO 6000);
https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf (Ada) and
https://www.nvidia.com/en-us/data-center/l4/ (L4).
"""

from typing import NamedTuple

import jax
from jax.experimental import topologies

from service.device.chips import H100, L4, RTX_PRO_6000, Chip
from service.device.memory import Device


class Processors(NamedTuple):
    """The sizes that differ between GPUs."""

    cores: int  # streaming multiprocessors
    threads_per_core: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    cache_bytes: int
    bytes_per_s: int
    clock_ghz: float


GPUS = {
    "l4": (L4, Processors(58, 1536, 102_400, 101_376, 50_331_648, 300_000_000_000, 2.04)),
    "h100": (H100, Processors(132, 2048, 233_472, 232_448, 52_428_800, 3_352_320_000_000, 1.98)),
    "rtx-pro-6000": (RTX_PRO_6000, Processors(188, 1536, 131_072, 101_376, 134_217_728, 1_792_000_000_000, 2.6)),
}


def target_config(chip: Chip, processors: Processors) -> str:
    """Return a `stream_executor.GpuTargetConfigProto` as text."""
    major, minor = chip.compute_capability.split(".")
    extension = "ACCELERATED_FEATURES" if major == "9" else "NONE"
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {processors.shared_bytes_per_core}
  threads_per_core_limit: {processors.threads_per_core}
  core_count: {processors.cores}
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {processors.bytes_per_s}
  l2_cache_size: {processors.cache_bytes}
  clock_rate_ghz: {processors.clock_ghz}
  device_memory_size: {chip.memory_bytes}
  shared_memory_per_block_optin: {processors.shared_bytes_per_block}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 13 minor: 0 }}
device_description_str: "{chip.device_kind}"
"""


def use_gpu(name: str) -> tuple[Device, ...]:
    """Have this process compile for a GPU that is not there, and return it."""
    jax.config.update("jax_platforms", "cpu")
    config = target_config(*GPUS[name])
    description = topologies.get_topology_desc(platform="cuda", target_config=config, topology="1x1x1")
    jax.config.update("jax_default_device", description.devices[0])
    return tuple(description.devices)
