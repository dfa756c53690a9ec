"""Experts of W4A16, each of whose projections is packed by itself, stay in 4 bits and give the logits of wide ones."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_checkpoint
from service.device.mesh import DeviceMesh
from service.errors import CheckpointError, UnquantizableWeights
from service.models.decoder import Decoder
from service.models.quantization import Quantization, kept_storage
from service.models.registry import read_config
from service.models.weight_spec import FLOAT32, INT4
from service.observability.progress import Progress
from service.storage.local import LocalSource
from tests.checkpoint.quantized_formats import compressed, integer_config
from tests.parity.family_cases import FAMILY_CASES, draw
from tests.parity.test_reference_logits import logits_by_chunk
from tests.served import DEMO

[CASE] = [case for case in FAMILY_CASES if case.name == "qwen3_moe"]
GROUP_SIZE = 8
EXPERT = "model.layers.1.mlp.experts.2.down_proj"


def written(*, has_zeros: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    """Return packed tensors, those that they stand for, and their quantization_config."""
    tensors, wide = {}, {}
    for name, values in CASE.tensors().items():
        wide[name] = values
        if not name.endswith("_proj.weight"):
            tensors[name] = values
            continue
        made, wide[name] = compressed(GROUP_SIZE, has_zeros=has_zeros)(values.astype(np.float32))
        tensors |= {f"{name.removesuffix('.weight')}.{end}": np.ascontiguousarray(part) for end, part in made.items()}
    config = integer_config(GROUP_SIZE, symmetric=not has_zeros)
    return tensors, wide, {**config, "ignore": ["lm_head", "re:.*mlp.gate$"]}


def load(
    folder: Path,
    tensors: dict[str, np.ndarray],
    quantization: dict[str, Any] | None,
    *,
    num_devices: int = 1,
    **hub_config: Any,
):
    """Save a checkpoint, and load it with its layers in 4 bits if they can be."""
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder / file)
    more = {} if quantization is None else {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps({**CASE.hub_config, **hub_config, **more}))
    save_file(tensors, folder / "model.safetensors")
    located = locate(str(folder), LocalSource)
    config = read_config("m", located.hub_config)
    storage = kept_storage(config.layer_storage, Quantization.NONE, "gpu", num_devices)
    model = Decoder(replace(config, layer_storage=storage), FLOAT32)
    mesh = DeviceMesh((jax.devices("cpu")[0],))
    limits = LoadLimits(None, Progress(), 1 << 20)
    return model, dict(load_checkpoint(located, model.weight_specs(), mesh=mesh, limits=limits).weights)


@pytest.mark.parametrize("has_zeros", [False, True], ids=["symmetric", "zero points"])
def test_experts_stay_in_4_bits_and_give_the_logits_of_what_they_stand_for(has_zeros: bool, tmp_path: Path):
    tensors, wide, quantization = written(has_zeros=has_zeros)
    model, weights = load(tmp_path / "m", tensors, quantization)
    for name in ("layers.1.expert_gate_up", "layers.1.expert_down"):
        assert weights[name].dtype == INT4
        assert (f"{name}.zero" in weights) is has_zeros
    plain, wide_weights = load(tmp_path / "wide", wide, None)
    made, expected = (
        logits_by_chunk(each, arrays, CASE.token_ids, len(CASE.token_ids))
        for each, arrays in ((model, weights), (plain, wide_weights))
    )
    np.testing.assert_allclose(made, expected, atol=1e-3, rtol=0)


def test_several_devices_have_experts_in_rows_of_8_bits(tmp_path: Path):
    tensors, _, quantization = written(has_zeros=False)
    _, weights = load(tmp_path / "m", tensors, quantization, num_devices=2)
    assert weights["layers.1.expert_down"].dtype == np.int8
    assert weights["layers.1.output"].dtype == INT4


def test_experts_with_an_odd_number_of_columns_become_rows_of_8_bits(tmp_path: Path):
    tensors: dict[str, np.ndarray] = {}
    for name, values in CASE.tensors().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = values
            continue
        made, _ = compressed(0)(draw(CASE.model_type, name, tuple(25 if n == 24 else n for n in values.shape)))
        tensors |= {f"{name.removesuffix('.weight')}.{end}": np.ascontiguousarray(part) for end, part in made.items()}
    config = {**integer_config(None), "ignore": ["lm_head", "re:.*mlp.gate$"]}
    _, weights = load(tmp_path / "m", tensors, config, moe_intermediate_size=25)
    assert weights["layers.1.expert_down"].dtype == np.int8
    assert weights["layers.1.expert_gate_up"].dtype == INT4


def zero(tensors: dict[str, np.ndarray]) -> None:
    tensors[f"{EXPERT}.weight_scale"][1, 1] = 0


def not_a_number(tensors: dict[str, np.ndarray]) -> None:
    tensors[f"{EXPERT}.weight_scale"][1, 1] = np.nan


def of_other_groups(tensors: dict[str, np.ndarray]) -> None:
    tensors[f"{EXPERT}.weight_scale"] = tensors[f"{EXPERT}.weight_scale"][:, :1].copy()


def without_a_scale(tensors: dict[str, np.ndarray]) -> None:
    del tensors[f"{EXPERT}.weight_scale"]


def one_wide_expert(tensors: dict[str, np.ndarray]) -> None:
    for end in ("packed", "scale", "shape"):
        tensors.pop(f"{EXPERT}.weight_{end}")
    tensors[f"{EXPERT}.weight"] = CASE.tensors()[f"{EXPERT}.weight"]


@pytest.mark.parametrize("change", [zero, not_a_number, of_other_groups, without_a_scale, one_wide_expert])
def test_an_expert_that_contradicts_the_configuration_is_refused_by_its_tensor(change, tmp_path: Path):
    tensors, _, quantization = written(has_zeros=False)
    change(tensors)
    with pytest.raises((CheckpointError, UnquantizableWeights), match=r"experts\.2\.down_proj"):
        load(tmp_path / "m", tensors, quantization)
