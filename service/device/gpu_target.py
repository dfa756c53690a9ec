"""XLA's descriptions of GPUs, for compiling without a device.

Source: https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs (H100, H200 and
RTX PRO 6000); https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf (Ada) and
https://www.nvidia.com/en-us/data-center/l4/ (L4).
"""

from collections.abc import Mapping
from typing import NamedTuple

from service.device.chips import H100, H200, L4, RTX_PRO_6000, Chip


class Processors(NamedTuple):
    """The sizes that differ between GPUs."""

    cores: int  # streaming multiprocessors
    threads_per_core: int
    shared_bytes_per_core: int
    shared_bytes_per_block: int
    cache_bytes: int
    bytes_per_s: int
    clock_ghz: float


PROCESSORS: Mapping[str, Processors] = {
    L4.device_kind: Processors(58, 1536, 102_400, 101_376, 50_331_648, 300_000_000_000, 2.04),
    H100.device_kind: Processors(132, 2048, 233_472, 232_448, 52_428_800, 3_352_320_000_000, 1.98),
    H200.device_kind: Processors(132, 2048, 233_472, 232_448, 62_914_560, 4_800_000_000_000, 1.98),
    RTX_PRO_6000.device_kind: Processors(188, 1536, 131_072, 101_376, 134_217_728, 1_792_000_000_000, 2.6),
}
# The version of cuDNN, whose kernels these programs do not use.
CUDNN = "major: 9 minor: 10"


def target_config(chip: Chip, cuda_version: str) -> str:
    """Return a `stream_executor.GpuTargetConfigProto` as text, for a version of CUDA such as 13.0."""
    processors = PROCESSORS[chip.device_kind]
    major, minor = chip.compute_capability.split(".")
    extension = "ACCELERATED_FEATURES" if major == "9" else "NONE"
    cuda_major, cuda_minor = cuda_version.split(".")[:2]
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
dnn_version_info {{ {CUDNN} }}
runtime_version {{ major: {cuda_major} minor: {cuda_minor} }}
device_description_str: "{chip.device_kind}"
"""
