"""The contenders of the comparison, by name, and the settings of those that are Levserve."""

from collections.abc import Mapping
from pathlib import Path

SETTINGS = {"MAX_NUM_SEQS": "32", "MAX_MODEL_LEN": "1024", "DTYPE": "float32"}
QUICK_SETTINGS = SETTINGS | {"MAX_NUM_SEQS": "8", "MAX_MODEL_LEN": "256"}  # for fewer executables
FLOAT32, INT8, INT8_KV = "float32", "int8", "int8, int8 KV"
AVX2_FLOAT32, AVX2_INT8 = "float32, AVX2 alone", "int8, AVX2 alone"
LLAMA_FLOAT32, LLAMA_Q8 = "llama.cpp float32", "llama.cpp q8_0"
AVX2 = {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}
WAYS: Mapping[str, Mapping[str, str]] = {
    FLOAT32: {},
    INT8: {"QUANTIZATION": "int8"},
    INT8_KV: {"QUANTIZATION": "int8", "KV_DTYPE": "int8"},
    AVX2_FLOAT32: AVX2,
    AVX2_INT8: {"QUANTIZATION": "int8", **AVX2},
}
# Contenders that run beside each other. Those of no bound among the main ones have rounds of their own.
MAIN = (FLOAT32, INT8, LLAMA_FLOAT32, LLAMA_Q8)
OTHERS = (AVX2_FLOAT32, AVX2_INT8, INT8_KV)


def way_settings(way: str, *, is_quick: bool) -> dict[str, str]:
    """Return the settings and the environment of a way."""
    return (QUICK_SETTINGS if is_quick else SETTINGS) | dict(WAYS[way])


def way_folder(folder: Path, way: str) -> Path:
    """Return the folder for the bundle and the log of a way, which exists then."""
    own = folder / "quantization" / way.replace(", ", "-").replace(" ", "-")
    own.mkdir(parents=True, exist_ok=True)
    return own
