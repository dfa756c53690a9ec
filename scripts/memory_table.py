"""The tables of docs/memory.md: which model fits on which device, by the planner that a start uses, and adapters.

Source of model sizes: `config.json` on https://huggingface.co of meta-llama/Llama-3.2-1B and Llama-3.1-8B,
Qwen/Qwen3-4B, Qwen3-14B, Qwen3-32B and Qwen3-30B-A3B, google/gemma-3-4b-pt (its `text_config`), openai/gpt-oss-20b.
"""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from service.device.chips import H100, L4, RTX_PRO_6000, V5E, V6E, Chip
from service.device.memory import ACCELERATOR_FRACTION, usable_memory_bytes
from service.device.mesh import DeviceMesh
from service.engine.shapes import EngineShapes
from service.errors import DoesNotFit
from service.kernels.choice import choose_kernels
from service.models.adapter_arrays import AdapterShapes, adapter_specs, slot_bytes
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.settings import Settings
from service.start.dtype import BFLOAT16, choose_formats
from service.start.kinds.decoder import head_shapes
from service.start.kinds.engine_spec import choose_shapes, with_kept_bits, without_slow_images

NUM_SEQS = (16, 64)
KV_DTYPES = ("auto", "int8")
RANKS = (8, 16, 64)


@dataclass(frozen=True)
class PlannedDevice:
    """A chip as the planner sees it."""

    chip: Chip
    id: int = 0
    client: None = None

    @property
    def platform(self) -> str:
        """The platform of the chip."""
        return self.chip.platform

    @property
    def device_kind(self) -> str:
        """JAX's name of the chip."""
        return self.chip.device_kind

    @property
    def compute_capability(self) -> str:
        """A GPU's generation."""
        return self.chip.compute_capability

    def memory_stats(self) -> Mapping[str, int]:
        """Return the allocator's statistics."""
        return {"bytes_limit": int(self.chip.memory_bytes * (ACCELERATOR_FRACTION if self.platform == "gpu" else 1))}


DEVICES: Mapping[str, Sequence[PlannedDevice]] = {
    "L4": [PlannedDevice(L4)],
    "RTX PRO 6000": [PlannedDevice(RTX_PRO_6000)],
    "H100": [PlannedDevice(H100)],
    "v5e": [PlannedDevice(V5E)],
    "4 v5e": [PlannedDevice(V5E)] * 4,
    "v6e": [PlannedDevice(V6E)],
    "8 v6e": [PlannedDevice(V6E)] * 8,
}
LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "num_attention_heads": 32,
    "hidden_act": "silu",
}
QWEN3: Mapping[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "head_dim": 128,
    "hidden_act": "silu",
}

GEMMA3: Mapping[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 1024,
    "query_pre_attn_scalar": 256,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
GEMMA4: Mapping[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": 262_144,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
}
GEMMA4_VISION: Mapping[str, int | bool] = {
    **{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16},
    **{"num_key_value_heads": 16, "head_dim": 72, "standardize": True},
}
GEMMA4_E: Mapping[str, Any] = GEMMA4 | {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 18,
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
}
QWEN3_5: Mapping[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262_144,
}
QWEN3_MOE: Mapping[str, Any] = QWEN3 | {
    "model_type": "qwen3_moe",
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
GPT_OSS: Mapping[str, Any] = {
    "model_type": "gpt_oss",
    "vocab_size": 201_088,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 131_072,
    "sliding_window": 128,
}


def _sizes(hidden: int, mlp: int, layers: int, **more: Any) -> Mapping[str, Any]:
    return {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers, **more}


def _seeing(model_type: str, text: Mapping[str, Any], **vision: int | bool) -> Mapping[str, Any]:
    """Return a model with an image encoder, whose sizes beside the family's own are given."""
    tied = text.get("tie_word_embeddings")
    whole = {"model_type": model_type, "text_config": text, "vision_config": vision}
    return whole if tied is None else whole | {"tie_word_embeddings": tied}


GEMMA4_31B: Mapping[str, Any] = GEMMA4 | _sizes(
    5376,
    21_504,
    60,
    num_attention_heads=32,
    num_key_value_heads=16,
    num_global_key_value_heads=4,
    attention_k_eq_v=True,
    use_bidirectional_attention="vision",
)
GEMMA4_26B: Mapping[str, Any] = GEMMA4 | _sizes(
    2816,
    2112,
    30,
    num_attention_heads=16,
    num_key_value_heads=8,
    num_global_key_value_heads=2,
    attention_k_eq_v=True,
    use_bidirectional_attention="vision",
    enable_moe_block=True,
    num_experts=128,
    top_k_experts=8,
    moe_intermediate_size=704,
)
MODELS: dict[str, Mapping[str, Any]] = {
    "Llama 3.2 1B": LLAMA | _sizes(2048, 8192, 16, head_dim=64, tie_word_embeddings=True),
    "Qwen3 4B": QWEN3 | _sizes(2560, 9728, 36, num_attention_heads=32, tie_word_embeddings=True),
    "Llama 3.1 8B": LLAMA | _sizes(4096, 14_336, 32, head_dim=128),
    "Qwen3 14B": QWEN3 | _sizes(5120, 17_408, 40, num_attention_heads=40),
    "Qwen3 32B": QWEN3 | _sizes(5120, 25_600, 64, num_attention_heads=64),
    "Gemma 3 4B": GEMMA3 | _sizes(2560, 10_240, 34),
    "Gemma 4 E4B": _seeing("gemma4", GEMMA4_E | _sizes(2560, 10_240, 42), use_clipped_linears=True),
    "Gemma 4 26B-A4B": _seeing("gemma4", GEMMA4_26B, **GEMMA4_VISION),
    "Gemma 4 31B": _seeing("gemma4", GEMMA4_31B, **GEMMA4_VISION),
    "Qwen3.5 4B": _seeing(
        "qwen3_5",
        QWEN3_5 | _sizes(2560, 9216, 32, tie_word_embeddings=True),
        **{"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2560},
    ),
    "Qwen3.5 9B": _seeing("qwen3_5", QWEN3_5 | _sizes(4096, 12_288, 32), out_hidden_size=4096),
    "Qwen3 30B-A3B": QWEN3_MOE | _sizes(2048, 6144, 48),
    "gpt-oss 20B": GPT_OSS | _sizes(2880, 2880, 24) | {"quantization_config": {"quant_method": "mxfp4"}},
}
AWQ: Mapping[str, Any] = {
    "quantization_config": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 128,
        "zero_point": True,
        "version": "gemm",
    }
}
IN_4_BITS = ", 4 bits"
MODELS |= {
    f"{name}{IN_4_BITS}": MODELS[name] | AWQ for name in ("Llama 3.1 8B", "Qwen3 14B", "Qwen3 32B", "Qwen3 30B-A3B")
}


def fitting_shapes(model: str, device: str, num_seqs: int, kv_dtype: str = "auto") -> EngineShapes | None:
    """Return the sizes that a start would choose with weights in bfloat16, or in 4 bits with the embedding in 8.

    None if the model does not fit.
    """
    chips = DEVICES[device]
    settings = Settings(
        max_num_seqs=num_seqs,
        max_concurrent_requests=max(num_seqs, 64),
        kv_dtype=kv_dtype,
        quantization="int4" if model.endswith(IN_4_BITS) else "none",
    )
    formats, mesh = choose_formats(settings, {"dtype": "bfloat16"}, chips[0]), DeviceMesh(tuple(chips))
    whole = read_config(model, MODELS[model]).split_over(len(chips))
    for in_any_case in (False, True):
        config = with_kept_bits(whole, formats.quantization, mesh, in_any_case=in_any_case)
        config = without_slow_images(config, formats, mesh)
        kernel = choose_kernels(mesh.devices[0], head_shapes(config, formats, mesh))
        if in_any_case and kernel.obstacle is not None:
            break  # as `choose_engine_spec`
        with suppress(DoesNotFit):
            return choose_shapes(settings, config, formats, mesh, usable_memory_bytes(chips), kernel=kernel)
    return None


def memory_table() -> str:
    """Return a row for each model, a column for each device."""
    head = [f"| model | KV_DTYPE | slots | {' | '.join(DEVICES)} |", "|---|---|---|" + "---|" * len(DEVICES)]
    rows = itertools.product(MODELS, KV_DTYPES, NUM_SEQS)
    return "\n".join([*head, *(_row(model, kv_dtype, num_seqs) for model, kv_dtype, num_seqs in rows)])


def _row(model: str, kv_dtype: str, num_seqs: int) -> str:
    cells = " | ".join(_cell(model, device, num_seqs, kv_dtype) for device in DEVICES)
    return f"| {model} | {kv_dtype} | {num_seqs} | {cells} |"


def _cell(model: str, device: str, num_seqs: int, kv_dtype: str) -> str:
    shapes = fitting_shapes(model, device, num_seqs, kv_dtype)
    return "–" if shapes is None else f"{shapes.max_model_len:,}; {shapes.num_pages * shapes.page_size:,}"


def adapters_table() -> str:
    """Return a row for each model with the megabytes of one slot, a column for each rank."""
    head = [f"| model | {' | '.join(f'rank {rank}' for rank in RANKS)} |", "|---|" + "---:|" * len(RANKS)]
    return "\n".join([*head, *(f"| {model} | {' | '.join(_slot_cells(model))} |" for model in MODELS)])


def _slot_cells(model: str) -> list[str]:
    specs = decoder_weight_specs(read_config(model, MODELS[model]), BFLOAT16)
    slots = (adapter_specs(specs, AdapterShapes(1, rank), BFLOAT16) for rank in RANKS)
    return [f"{slot_bytes(slot) / 1e6:,.0f}" for slot in slots]
