"""Supported accelerators as JAX and their drivers report them, and the cloud machines that have them."""

from collections.abc import Mapping
from dataclasses import dataclass

MIB, GIB = 2**20, 2**30
# Of prompts in one step, so that products take longer than reading the weights: chips that compute more in the time of
# one byte need more tokens.
USUAL_CHUNK_TOKENS, LARGE_CHUNK_TOKENS = 512, 2048


@dataclass(frozen=True)
class Chip:
    """A kind of accelerator."""

    platform: str  # gpu, tpu
    device_kind: str  # JAX's name
    memory_bytes: int  # of a GPU as reported by CUDA, which is less than `nvidia-smi` shows; of a TPU by JAX
    compute_capability: str = ""  # of a GPU
    chunk_tokens: int = USUAL_CHUNK_TOKENS  # of prompts, in one step


# Source: "a total capacity of 22.03 GiB", and of 139.80, in PyTorch's messages, which query CUDA (`cudaMemGetInfo`).
L4 = Chip("gpu", "NVIDIA L4", int(22.03 * GIB), "8.9")
H200 = Chip("gpu", "NVIDIA H200", int(139.80 * GIB), "9.0", LARGE_CHUNK_TOKENS)
# Source: "total=94.97 GiB", likewise, in https://github.com/antirez/ds4/issues/563
RTX_PRO_6000 = Chip("gpu", "NVIDIA RTX PRO 6000 Blackwell Server Edition", int(94.97 * GIB), "12.0", LARGE_CHUNK_TOKENS)
# Source: https://github.com/openxla/xla/blob/main/xla/backends/gpu/target_config/specs/h100_sxm.txtpb
H100 = Chip("gpu", "NVIDIA H100 80GB HBM3", 84_942_979_072, "9.0", LARGE_CHUNK_TOKENS)
# Source: XLA's messages, which state a capacity of 15.75 of 16 GiB.
V5E = Chip("tpu", "TPU v5 lite", int(15.75 * GIB))
# Source: https://github.com/vllm-project/vllm/pull/16211
V6E = Chip("tpu", "TPU v6 lite", 33_550_237_696, chunk_tokens=LARGE_CHUNK_TOKENS)

CHIPS: Mapping[str, Chip] = {chip.device_kind: chip for chip in (L4, RTX_PRO_6000, H100, H200, V5E, V6E)}


def chunk_tokens(device_kind: str) -> int:
    """Return how many tokens of prompts a step computes at most on a kind of device, unless the operator chooses."""
    chip = CHIPS.get(device_kind)
    return USUAL_CHUNK_TOKENS if chip is None else chip.chunk_tokens


def cuda_capability(device: object) -> tuple[int, ...]:
    """Return the compute capability of a GPU, such as (8, 9); empty for GPUs of other vendors."""
    parts = str(getattr(device, "compute_capability", "")).split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()


@dataclass(frozen=True)
class Target:
    """A machine with accelerators that programs can be cross-compiled for."""

    chip: Chip
    topology: str = ""  # libtpu's name for the arrangement of a host's TPUs

    @property
    def chips_of_host(self) -> list[int]:
        """The number of TPUs along each of the three dimensions of their torus."""
        return [*map(int, self.topology.partition(":")[2].split("x")), 1]


# Source of the topologies: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
TARGETS: Mapping[str, Target] = {
    "l4": Target(L4),
    "h100": Target(H100),
    "h200": Target(H200),
    "rtx-pro-6000": Target(RTX_PRO_6000),
    "v5e-1": Target(V5E, "v5e:1x1"),
    "v5e-4": Target(V5E, "v5e:2x2"),
    "v5e-8": Target(V5E, "v5e:2x4"),
    "v6e-1": Target(V6E, "v6e:1x1"),
    "v6e-4": Target(V6E, "v6e:2x2"),
    "v6e-8": Target(V6E, "v6e:2x4"),
}
