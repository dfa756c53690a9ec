"""An adapter is read whole and of the right model, or refused by file and tensor; its bytes are verified."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save, save_file

from service.checkpoint.adapters.locate import MAX_WEIGHTS_BYTES, WEIGHTS, locate_adapter
from service.checkpoint.adapters.peft import CONFIG
from service.checkpoint.adapters.read import SlotLimits, read_updates
from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import is_on_this_machine, load_on_host
from service.errors import CorruptObject, MalformedCheckpoint, MissingFile, ObjectChanged, RefusedAdapter
from service.models.decoder_weights import decoder_weight_specs
from service.models.quantization import Quantization
from service.models.registry import read_config
from service.models.weight_spec import FLOAT32, WeightSpec
from service.observability.progress import Progress
from service.storage.gcs.read import GcsSource
from service.storage.local import LocalSource
from service.weights.low_rank import LowRankUpdate
from service.weights.quantization import quantize_rows
from tests.checkpoint.streamed import CONFIG as BASE_CONFIG
from tests.checkpoint.streamed import OBJECTS, SPECS, TENSORS
from tests.checkpoint.test_text_of_image_models import CASES as IMAGE_MODELS
from tests.checkpoint.test_text_of_image_models import TEXT_CLASS
from tests.fault_proxy import Fault
from tests.gcs import GcsBucket
from tests.parity.family_cases import FAMILY_CASES
from tests.stored import quick_limits

RANK = 3
LAYER = "model.layers.1.self_attn.q_proj"
A, B = (f"base_model.model.{LAYER}.lora_{part}.weight" for part in "AB")
DOWN = "model.layers.0.mlp.down_proj"
RANDOM = np.random.RandomState(1)
UPDATES = {
    A: RANDOM.randn(RANK, 64).astype(np.float32),
    B: RANDOM.randn(64, RANK).astype(np.float32),
    f"base_model.model.{DOWN}.lora_A.weight": RANDOM.randn(RANK, 160).astype(ml_dtypes.bfloat16),
    f"base_model.model.{DOWN}.lora_B.weight": RANDOM.randn(64, RANK).astype(ml_dtypes.bfloat16),
}
VALUES = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "base_model_name_or_path": "org/base"}
LIMITS = LoadLimits(None, Progress(), 1 << 20)


def written(folder: Path, tensors: dict[str, np.ndarray] = UPDATES, **values) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(VALUES | values))
    save_file(tensors, folder / WEIGHTS)
    return folder


def is_base(tensor: str, values: np.ndarray) -> bool:
    return np.array_equal(TENSORS[tensor].astype(np.float32), values.astype(np.float32))


def read(folder: Path, specs: tuple[WeightSpec, ...] = SPECS, max_rank: int | None = None) -> dict[str, LowRankUpdate]:
    slot = None if max_rank is None else SlotLimits(max_rank, FLOAT32, is_base)
    return read_updates(locate_adapter(str(folder), LocalSource), specs, LIMITS, slot)


def summed(name: str) -> np.ndarray:
    """The tensor of the base model with the update of VALUES and UPDATES."""
    first, second = (UPDATES[f"base_model.model.{name}.lora_{part}.weight"].astype(np.float32) for part in "AB")
    return TENSORS[f"{name}.weight"].astype(np.float32) + 2 * second @ first


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    for name, data in OBJECTS.items():
        (folder / name).write_bytes(data)
    return folder


def test_an_adapter_is_merged_while_the_weights_load(base: Path, tmp_path: Path):
    adapter = written(tmp_path / "adapter")
    weights = load_on_host(locate(str(base), LocalSource, adapter_uri=str(adapter)), SPECS, LIMITS).weights
    plain = load_on_host(locate(str(base), LocalSource), SPECS, LIMITS).weights
    np.testing.assert_allclose(weights["layers.0.down"], summed(DOWN), rtol=1e-5, atol=1e-5)
    queries = weights["layers.1.qkv"].reshape(2, 4, 16, 64)[:, :2].reshape(64, 64)
    np.testing.assert_allclose(queries, summed(LAYER), rtol=1e-5, atol=1e-5)
    changed = [name for name in plain if not np.array_equal(weights[name], plain[name])]
    assert changed == ["layers.0.down", "layers.1.qkv"]


@pytest.mark.parametrize("quantization", [Quantization.INT8, Quantization.FP8])
def test_a_model_is_quantized_after_the_merge(base: Path, tmp_path: Path, quantization: Quantization):
    located = locate(str(base), LocalSource, adapter_uri=str(written(tmp_path / "adapter")))
    specs = decoder_weight_specs(read_config("m", located.hub_config), quantization=quantization)
    weights = load_on_host(located, specs, LIMITS).weights
    dtype = next(spec.dtype for spec in specs if spec.name == "layers.0.down")
    values, scales = quantize_rows(summed(DOWN), dtype=dtype)
    np.testing.assert_allclose(weights["layers.0.down.scale"], scales, rtol=1e-6)
    assert (weights["layers.0.down"].astype(np.float32) == values.astype(np.float32)).mean() > 0.999


def test_a_merged_model_and_its_base_are_never_taken_for_one_another(base: Path, tmp_path: Path):
    adapter = written(tmp_path / "adapter")
    versions = {locate(str(base), LocalSource).version}
    versions.add(locate(str(base), LocalSource, adapter_uri=str(adapter)).version)
    written(adapter, {name: tensor * 2 for name, tensor in UPDATES.items()})
    os.utime(adapter / WEIGHTS, ns=(1, 1))
    versions.add(locate(str(base), LocalSource, adapter_uri=str(adapter)).version)
    assert len(versions) == 3


def test_names_with_and_without_the_prefix_of_a_head_are_those_of_one_layer(tmp_path: Path):
    bare = {name.replace("model.model.", "model."): tensor for name, tensor in UPDATES.items()}
    assert bare.keys() != UPDATES.keys()
    assert read(written(tmp_path / "a", bare)).keys() == read(written(tmp_path / "b")).keys()


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_an_adapter_of_a_text_that_its_own_class_held_is_that_of_the_whole_model(tmp_path: Path, name: str):
    specs = decoder_weight_specs(read_config("m", json.loads(json.dumps(IMAGE_MODELS[name][0]))))
    sources = {source.name: source for spec in specs for source in spec.sources}
    [own] = [own for own in sources if "layers.0.mlp.down_proj" in own and TEXT_CLASS.match(own)]
    num_out, num_in = sources[own].shape
    shapes = {"A": (RANK, num_in), "B": (num_out, RANK)}
    found = []
    for module in (own, TEXT_CLASS.sub("model.", own)):
        stem = f"base_model.model.{module.removesuffix('.weight')}"
        tensors = {f"{stem}.lora_{part}.weight": np.ones(shape, np.float32) for part, shape in shapes.items()}
        found.append(read(written(tmp_path / f"{len(found)}", tensors), specs))
    whole, text = found
    assert text.keys() == whole.keys() == {own}


def without(*names: str) -> dict[str, np.ndarray]:
    return {name: tensor for name, tensor in UPDATES.items() if name not in names}


ONES = np.ones((RANK, 64), np.float32)


@pytest.mark.parametrize(
    ("tensors", "field", "reason"),
    [
        ({}, "tensors", "there are none"),
        (without(B), B, "is missing, while its partner is there"),
        (without(A), A, "is missing, while its partner is there"),
        (UPDATES | {A: ONES[:2]}, A, r"rank 3 .* make it \[3, 64\]"),
        (UPDATES | {A: np.ones((RANK, 32), np.float32)}, A, "trained on 'org/base'"),
        (UPDATES | {B: UPDATES[B] * np.inf}, B, "NaN or infinite"),
        (UPDATES | {A: UPDATES[A] * np.nan}, A, "NaN or infinite"),
        (UPDATES | {A: ONES * 3e38, B: np.full((64, RANK), 3e38, np.float32)}, B, "float32 holds up to 3.4e.38"),
        (UPDATES | {"base_model.model.model.layers.2.mlp.down_proj.lora_A.weight": ONES}, "", "no such layer"),
        (UPDATES | {"base_model.model.model.embed_tokens.lora_A.weight": ONES}, "", "not embeddings, heads or experts"),
        (UPDATES | {"base_model.model.model.embed_tokens.lora_embedding_A": ONES}, "", "embeddings are not served"),
        (UPDATES | {"base_model.model.score.weight": ONES}, "", "the model has no such layer"),
        (UPDATES | {f"base_model.model.{LAYER}.lora_magnitude_vector": ONES}, "", "DoRA is not served"),
        (UPDATES | {f"base_model.model.{LAYER}.lora_B.bias": ONES[0]}, "", "the layer has no bias to add it to"),
        (UPDATES | {f"base_model.model.{LAYER}.base_layer.bias": ONES[0]}, "", "the model has no such layer"),
        (UPDATES | {f"base_model.model.{LAYER}.lora_C.weight": ONES}, "", "an update of this kind is not served"),
        (UPDATES | {f"base_model.model.{LAYER}.lora_A.other.weight": ONES}, "", "is the same tensor as"),
        (UPDATES | {"model.layers.0.mlp.up_proj.lora_A.weight": ONES}, "", "is missing, while its partner is there"),
    ],
)
def test_tensors_that_are_not_of_the_model_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, np.ndarray], field: str, reason: str
):
    with pytest.raises(RefusedAdapter, match=reason) as caught:
        read(written(tmp_path / "a", tensors))
    assert caught.value.file == WEIGHTS
    assert caught.value.field.startswith(field)


def test_a_rank_above_the_limit_is_refused_with_both(tmp_path: Path):
    assert read(written(tmp_path / "a"), max_rank=3)
    with pytest.raises(RefusedAdapter, match=r"has rank 3; MAX_LORA_RANK is 2"):
        read(tmp_path / "a", max_rank=2)


def test_an_update_that_float16_cannot_hold_is_refused(tmp_path: Path):
    adapter = written(tmp_path / "a", UPDATES | {A: ONES * 1e4, B: np.full((64, RANK), 10, np.float32)})
    assert read(adapter)
    specs = decoder_weight_specs(read_config("m", BASE_CONFIG), np.dtype(np.float16))
    with pytest.raises(RefusedAdapter, match=r"may reach 6e\+05; float16 holds up to 6.55e\+04"):
        read(adapter, specs)


def test_experts_are_refused_by_name(tmp_path: Path):
    case = next(case for case in FAMILY_CASES if case.name == "mixtral")
    expert = "base_model.model.model.layers.0.block_sparse_moe.experts.1.w1"
    tensors = {f"{expert}.lora_A.weight": ONES[:, :32], f"{expert}.lora_B.weight": np.ones((48, RANK), np.float32)}
    with pytest.raises(RefusedAdapter, match="not embeddings, heads or experts"):
        read(written(tmp_path / "a", tensors), decoder_weight_specs(read_config("m", case.hub_config)))


def test_a_checkpoint_in_int8_takes_no_update(tmp_path: Path):
    scheme = {"num_bits": 8, "type": "int", "symmetric": True}
    quantized = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**scheme, "strategy": "channel"},
                "input_activations": {**scheme, "strategy": "token", "dynamic": True},
            }
        },
        "ignore": ["lm_head"],
    }
    specs = decoder_weight_specs(read_config("m", BASE_CONFIG | {"quantization_config": quantized}))
    with pytest.raises(RefusedAdapter, match="in int8, which takes no update"):
        read(written(tmp_path / "a"), specs)


def test_files_that_are_missing_or_malformed_are_refused(tmp_path: Path):
    adapter = written(tmp_path / "a")
    (adapter / CONFIG).write_text("[")
    with pytest.raises(MalformedCheckpoint, match=f"{CONFIG}: is not JSON"):
        locate_adapter(str(adapter), LocalSource)
    (adapter / CONFIG).write_text("[]")
    with pytest.raises(MalformedCheckpoint, match=f"{CONFIG}: is not a JSON object"):
        locate_adapter(str(adapter), LocalSource)
    (adapter / WEIGHTS).rename(adapter / "weights.safetensors")
    with pytest.raises(MissingFile, match=rf"{WEIGHTS} is missing"):
        locate_adapter(str(adapter), LocalSource)
    (adapter / CONFIG).unlink()
    with pytest.raises(MissingFile, match="not an adapter of PEFT"):
        locate_adapter(str(adapter), LocalSource)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path):
    adapter = written(tmp_path / "a")
    os.truncate(adapter / WEIGHTS, 5_000_000_000)  # of no blocks
    with pytest.raises(RefusedAdapter, match=f"size: is 5,000,000,000 bytes; the limit is {MAX_WEIGHTS_BYTES:,}"):
        locate_adapter(str(adapter), LocalSource)


def test_of_a_run_the_newest_step_is_taken_and_a_run_without_folders_is_told_how_to_write_them(tmp_path: Path):
    for step in (8, 10, 9):
        written(tmp_path / "run" / f"step-{step}")
    assert locate_adapter(str(tmp_path / "run"), LocalSource).uri == str(tmp_path / "run" / "step-10")
    (tmp_path / "trained" / "step-5").mkdir(parents=True)
    (tmp_path / "trained" / "step-5" / "metadata.json").write_text("{}")
    with pytest.raises(MissingFile, match="Set peft_save_path"):
        locate_adapter(str(tmp_path / "trained"), LocalSource)


def test_an_adapter_in_the_place_of_a_model_is_told_apart(tmp_path: Path):
    with pytest.raises(MissingFile, match=r"is an adapter\. Set MODEL_URI to its base model, and ADAPTER_URI"):
        locate(str(written(tmp_path / "a")), LocalSource)


@pytest.fixture
def located_in_bucket(gcs_bucket: GcsBucket, base: Path) -> Callable:
    gcs_bucket.upload("adapter/" + CONFIG, json.dumps(VALUES).encode())
    gcs_bucket.upload("adapter/" + WEIGHTS, save(UPDATES))

    def open_source(location):
        if not hasattr(location, "bucket"):
            return LocalSource(location)
        return GcsSource(location, emulator_host=gcs_bucket.endpoint, limits=quick_limits())

    return lambda: locate(str(base), open_source, adapter_uri=gcs_bucket.uri("adapter"))


def test_an_adapter_of_a_bucket_is_read_again_where_a_byte_was_wrong(
    gcs_bucket: GcsBucket, located_in_bucket: Callable
):
    gcs_bucket.faults([Fault(f"{WEIGHTS}.*alt=media", skip=1, flipped_byte=100)])
    located = located_in_bucket()
    assert not is_on_this_machine(located, None)
    weights = load_on_host(located, SPECS, LIMITS).weights
    assert gcs_bucket.hits()
    np.testing.assert_allclose(weights["layers.0.down"], summed(DOWN), rtol=1e-5, atol=1e-5)


def test_an_adapter_whose_bytes_stay_wrong_is_refused(gcs_bucket: GcsBucket, located_in_bucket: Callable):
    gcs_bucket.faults([Fault(f"{WEIGHTS}.*bytes=[1-9]", times=1000, flipped_byte=100)])
    with pytest.raises(CorruptObject, match=WEIGHTS):
        load_on_host(located_in_bucket(), SPECS, LIMITS)


def test_an_adapter_that_is_replaced_while_it_loads_is_an_error_and_never_a_mix(
    gcs_bucket: GcsBucket, located_in_bucket: Callable
):
    located = located_in_bucket()
    gcs_bucket.upload("adapter/" + WEIGHTS, save(UPDATES | {A: ONES}))
    with pytest.raises(ObjectChanged, match=WEIGHTS):
        load_on_host(located, SPECS, LIMITS)


def test_a_matrix_that_a_slot_cannot_hold_is_refused_though_its_product_is_small(tmp_path: Path):
    adapter = written(tmp_path / "a", UPDATES | {A: ONES * 1e5, B: np.full((64, RANK), 1e-6, np.float32)})
    assert read(adapter)
    located = locate_adapter(str(adapter), LocalSource)
    with pytest.raises(RefusedAdapter, match=r"beyond the 6\.55e\+04 that float16 holds"):
        read_updates(located, SPECS, LIMITS, SlotLimits(RANK, np.dtype(np.float16), is_base))
