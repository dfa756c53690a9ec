"""Adapters of the tiny checkpoints, one per way in which PEFT chooses layers, ranks and scales.

PEFT's configuration, and the names and shapes of the tensors that it writes, are kept beside the reference logits.
Weights come from numpy's frozen `RandomState`. Needs neither jax nor torch.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.parity.cases import CASES, Case
from tests.parity.family_cases import FAMILY_CASES, draw

BASES = {case.name: case for case in (*CASES, *FAMILY_CASES)}
_LAYER_BY_LAYER = r".*\.layers\.(0|2)\.(self_attn\.(q|v)_proj|mlp\.down_proj)"


@dataclass(frozen=True)
class AdapterCase:
    """One adapter: its base, and the arguments of PEFT's `LoraConfig`."""

    name: str
    base: str
    lora: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Case:
        return BASES[self.base]

    @property
    def reference_path(self) -> Path:
        return Path(__file__).parent / "references" / f"adapter_{self.name}.npz"

    def reference_logits(self) -> np.ndarray:
        """Return the logits of the model that PEFT merged, [token, vocab]."""
        with np.load(self.reference_path) as kept:
            return kept["logits"]

    def config(self) -> dict[str, Any]:
        """Return the `adapter_config.json` that PEFT wrote."""
        with np.load(self.reference_path) as kept:
            return json.loads(str(kept["config"]))

    def tensors(self) -> dict[str, np.ndarray]:
        """Draw every tensor of the adapter, under the names that PEFT wrote."""
        with np.load(self.reference_path) as kept:
            shapes = {str(name): tuple(map(int, shape.split())) for name, shape in kept["shapes"]}
        return {name: self.draw(name, shape) for name, shape in shapes.items()}

    def draw(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Draw a tensor; the head of a model that PEFT ties has the values of its embedding."""
        if self.lora.get("ensure_weight_tying"):
            name = name.replace("lm_head", "model.embed_tokens")
        return draw("adapter", name, shape)

    def save(self, folder: Path, **changed: Any) -> Path:
        """Write the adapter as PEFT does, with some values of its configuration changed."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(self.config() | changed))
        save_file(self.tensors(), folder / "adapter_model.safetensors")
        return folder


ADAPTER_CASES = (
    AdapterCase("all_linear", "llama_grouped_heads", {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}),
    AdapterCase(
        "patterns",
        "llama_grouped_heads",
        {
            "r": 3,
            "lora_alpha": 5,
            "target_modules": _LAYER_BY_LAYER,
            "rank_pattern": {"q_proj": 2, r"layers\.2\.mlp\.down_proj": 6},
            "alpha_pattern": {r"layers\.\d+\.self_attn\.v_proj": 9, "0.mlp.down_proj": 2},
        },
    ),
    AdapterCase(
        "rank_stabilized",
        "qwen3",
        {
            "r": 4,
            "lora_alpha": 3,
            "use_rslora": True,
            "target_modules": ["q_proj", "k_proj", "gate_proj", "o_proj"],
            "layers_to_transform": [0, 2],
            "layers_pattern": "layers",
            "exclude_modules": ["layers.0.self_attn.o_proj"],
            "alpha_pattern": {"gate_proj": 7},
        },
    ),
    AdapterCase("fused", "phi3", {"r": 4, "target_modules": ["qkv_proj", "gate_up_proj", "down_proj"]}),
    AdapterCase("gpt2", "gpt2", {"r": 4, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
)
_TOKENS = {"r": 2, "target_modules": ["q_proj"], "trainable_token_indices": [7, 1, 30]}
# Adapters that change more than linear layers, which only a merge can serve.
MERGED_CASES = (
    AdapterCase(
        "modules_to_save",
        "llama_grouped_heads",
        {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head", "norm"]},
    ),
    AdapterCase(
        "tied_modules_to_save",
        "llama_tied",
        {
            "r": 2,
            "target_modules": ["v_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
    AdapterCase("tokens", "llama_grouped_heads", _TOKENS),
    AdapterCase("tied_tokens", "llama_tied", _TOKENS),
    AdapterCase("lora_bias", "qwen2", {"r": 2, "target_modules": ["q_proj", "v_proj"], "lora_bias": True}),
    AdapterCase("bias_all", "qwen2", {"r": 2, "target_modules": ["q_proj"], "bias": "all"}),
    AdapterCase("bias_lora_only", "qwen2", {"r": 2, "target_modules": ["q_proj"], "bias": "lora_only"}),
    AdapterCase("head", "llama_grouped_heads", {"r": 2, "target_modules": ["q_proj", "lm_head"]}),
)
