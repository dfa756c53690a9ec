"""Makes the reference logits with transformers on torch, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch transformers numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.parity.make_references [NAME …]

The service never imports torch; what this writes is committed.
"""

import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.parity.cases import CASES, Case
from tests.parity.family_cases import FAMILY_CASES, LEVANTER_TYPES, MXFP4_CASE, FamilyCase, draw

GPT2_KEYS = (
    *("vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "n_inner", "activation_function"),
    *("scale_attn_by_inverse_layer_idx", "tie_word_embeddings"),
)


def reference_model(case: Case) -> transformers.PreTrainedModel:
    """Return the model of a case's configuration, in float32."""
    # With its quantization, transformers would compute everything in bfloat16.
    values = {key: value for key, value in case.hub_config.items() if key not in ("model_type", "quantization_config")}
    if case.model_type == "gpt2":  # its keys of Llama's names would be set twice
        values = {key: value for key, value in values.items() if key in GPT2_KEYS}
    config = transformers.AutoConfig.for_model(case.model_type, **values)
    config._attn_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).eval()


def reference_logits(case: Case, model: transformers.PreTrainedModel, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return float32 logits of every position, [token, vocab]."""
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        save_file(dict(tensors), f"{folder}/model.safetensors", {"format": "pt"})
        model, found = type(model).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    assert not found["unexpected_keys"], found
    assert not found["mismatched_keys"], found
    assert set(found["missing_keys"]) <= {"lm_head.weight"}, found
    with torch.no_grad():
        return model(torch.from_numpy(case.token_ids[None]).long()).logits[0].numpy()


def family_tensors(case: FamilyCase, model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    """Draw the tensors that a checkpoint of the model has."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        shapes = {name: value.shape for name, value in load_file(f"{folder}/model.safetensors").items()}
    if "quantization_config" in case.config:
        shapes = packed_shapes(shapes)
    if case.model_type == "olmo_hybrid":
        shapes = published_shapes(shapes)
    return {name: draw(case.model_type, name, shape) for name, shape in shapes.items()}


def published_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of OLMo Hybrid as they are published.

    transformers 5.24 saves the channels of the convolutions in three equal parts, and the norm after attention under
    the name of another.
    """
    own = {name: shapes[name.replace("_conv1d", "_proj")][:1] for name in shapes if "_conv1d" in name}
    wide = {name: (*own[name], *shape[1:]) if name in own else shape for name, shape in shapes.items()}
    attending = {name.partition(".self_attn.")[0] for name in shapes if ".self_attn." in name}
    others = {
        f"{layer}.feedforward_layer_norm.weight": f"{layer}.post_attention_layernorm.weight" for layer in attending
    }
    return {others.get(name, name): shape for name, shape in wide.items()}


def packed_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a checkpoint whose experts, stored [expert, in, out], are in MXFP4."""
    packed: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks = (shape[0], shape[2], shape[1] // 32)
            packed |= {f"{name}_blocks": (*blocks, 16), f"{name}_scales": blocks}
        else:
            packed[name] = shape
    return packed


def widened(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return tensors of which transformers has widened those in MXFP4."""
    wide = dict(tensors)
    for name in [name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")]:
        packed = (torch.from_numpy(wide.pop(f"{name}{part}")) for part in ("_blocks", "_scales"))
        wide[name] = convert_moe_packed_tensors(*packed, dtype=torch.float32).numpy()
    return wide


def main() -> None:
    """Write one file a case; of the named cases, if any is named."""
    names = sys.argv[1:] or [case.name for case in (*CASES, *FAMILY_CASES, MXFP4_CASE)]
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    made_here = (case for case in (*CASES, *FAMILY_CASES, MXFP4_CASE) if case.model_type not in LEVANTER_TYPES)
    for case in (case for case in made_here if case.name in names):
        model = reference_model(case)
        kept: dict[str, Any] = {}
        if isinstance(case, FamilyCase):
            tensors = family_tensors(case, model)
            kept["shapes"] = np.array([(name, " ".join(map(str, value.shape))) for name, value in tensors.items()])
        else:
            tensors = case.tensors()
        logits = reference_logits(case, model, widened(tensors))
        case.reference_path.parent.mkdir(exist_ok=True)
        np.savez_compressed(case.reference_path, logits=logits, **kept, **versions)
        print(f"{case.name:24} {logits.shape} std {logits.std():.3f}")


if __name__ == "__main__":
    main()
