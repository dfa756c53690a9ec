"""The plan of a start: its devices, the memory of each, and the kernel; a slow kernel is logged."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from scripts.memory_table import MODELS
from service.checkpoint.discover import locate
from service.device.chips import H100, H200, L4, RTX_PRO_6000, V6E, Chip
from service.errors import DoesNotFit, SettingsError
from service.kernels.choice import KernelName
from service.settings import Settings
from service.start.dtype import choose_kv_dtype
from service.start.kinds.engine_spec import EngineSpec, choose_engine_spec
from service.storage.local import LocalSource
from tests.checkpoint.quantized_formats import FORMATS
from tests.device.devices import NamedDevice
from tests.served import DEMO
from tests.sighted import save_gemma4, save_qwen

# Of the demo model in bfloat16: its table of tokens, and 4 layers of attention and MLP with two norms, and the last.
EMBED_BYTES = 2 * 3072 * 256
LAYER_BYTES = 2 * (256 * (4 + 2 + 2) * 64 + 4 * 64 * 256 + 3 * 256 * 768)
NORM_BYTES = 2 * 256
COPY_BYTES = 2 * 256 * 2 * 2 * 64  # of both key-value heads, in one layer
KV_BYTES_PER_TOKEN = 2 * 4 * 2 * 64 * 2
LIMIT_BYTES = 80_000_000
TIGHT_BYTES = 25_300_000  # for the demo model in rows of int8


def plan(
    number: int, limit_bytes: int = LIMIT_BYTES, quantized: Mapping[str, Any] | None = None, **settings
) -> EngineSpec:
    """Plan the demo model on GPUs, or on TPUs as if it were quantized."""
    client = SimpleNamespace(platform_version="1")
    kind = ("gpu", "L4") if quantized is None else ("tpu", "TPU v6 lite")
    devices = [NamedDevice(index, *kind, client=client, limit_bytes=limit_bytes) for index in range(number)]
    # Work space that the limits below leave room for, and contexts of which every slot has a whole one.
    chosen = Settings(**{"max_prefill_tokens": 256, "max_model_len": 1024} | settings)
    located = locate(str(DEMO), LocalSource)
    if quantized is not None:
        located = replace(located, hub_config={**located.hub_config, "quantization_config": quantized})
    return choose_engine_spec(chosen, located, devices)


def test_each_device_holds_its_part_of_the_weights():
    norms = 9 * NORM_BYTES
    assert plan(1).weights_bytes == EMBED_BYTES + 4 * LAYER_BYTES + norms
    assert plan(2).weights_bytes == (EMBED_BYTES + 4 * LAYER_BYTES) // 2 + norms
    four = plan(4)
    assert (four.config.heads.num_kv_heads, four.config.heads.group_size, four.config.heads.kv_copies) == (4, 1, 2)
    assert four.weights_bytes == (EMBED_BYTES + 4 * (LAYER_BYTES + COPY_BYTES)) // 4 + norms


def test_the_pages_follow_from_the_memory_of_all_devices():
    # Too little for all slots' whole context on one device; its weights halved and its pages halved on two.
    one, two = (plan(number, limit_bytes=40_000_000, max_num_seqs=64) for number in (1, 2))
    assert one.shapes.num_pages < 64 * 64
    left_bytes = [p.shapes.num_pages * 16 * KV_BYTES_PER_TOKEN // p.mesh.num_devices for p in (one, two)]
    assert all(pages + p.weights_bytes < 40_000_000 * 0.95 for pages, p in zip(left_bytes, (one, two), strict=True))
    assert two.shapes.num_pages > 2 * one.shapes.num_pages


def test_a_model_that_is_too_large_for_one_device_fits_on_four():
    limit_bytes = 24_000_000
    with pytest.raises(DoesNotFit, match="take more or larger devices"):
        plan(1, limit_bytes)
    assert plan(4, limit_bytes).mesh.num_devices == 4


@pytest.mark.parametrize("name", ["awq", "nvfp4", "nvfp4 of modelopt"])
def test_a_checkpoint_stays_in_4_bits_where_rows_of_int8_are_faster_if_these_do_not_fit(name, caplog):
    config, _ = FORMATS[name]
    roomy = plan(1, quantized=config)
    assert roomy.number_formats["quantization"] == "int8"
    with caplog.at_level(logging.INFO):
        tight = plan(1, TIGHT_BYTES, config, max_num_seqs=1)
    assert tight.number_formats["quantization"] == "int4"
    assert tight.weights_bytes < roomy.weights_bytes
    assert "the weights stay in 4 bits" in caplog.text
    with pytest.raises(DoesNotFit):
        plan(1, TIGHT_BYTES, config, max_num_seqs=1, quantization="int8")


def test_a_bundle_is_of_one_number_of_devices():
    # The same shapes, and yet other executables.
    one, two = plan(2, tensor_parallel=1), plan(2)
    assert one.shapes == two.shapes
    assert two.key.differences(one.key.inputs) == ["mesh", "num_devices"]
    recipe = {entry["name"]: entry for entry in two.recipe()}
    assert recipe["layers.0.qkv"]["sharding"] == ["model", None, None, None]
    assert (recipe["embed"]["sharding"], recipe["final_norm"]["sharding"]) == (["model", None], [None])


def test_fp8_weights_take_what_int8_takes_and_have_a_bundle_of_their_own():
    int8, fp8 = plan(1, quantization="int8"), plan(1, quantization="fp8")
    assert (fp8.weights_bytes, fp8.shapes, fp8.names) == (int8.weights_bytes, int8.shapes, int8.names)
    assert fp8.key.differences(int8.key.inputs) == ["quantization"]
    recipe = {entry["name"]: entry["dtype"] for entry in fp8.recipe()}
    assert (recipe["layers.0.qkv"], recipe["layers.0.qkv.scale"]) == ("float8_e4m3fn", "float32")
    assert fp8.number_formats == {"dtype": "bfloat16", "quantization": "fp8", "kv_dtype": "bfloat16"}


def test_int8_weights_are_planned_split_and_keyed_with_a_scale_for_each_row():
    wide, one, four = plan(1), plan(1, quantization="int8"), plan(4, quantization="int8")
    rows = 3072 + 4 * (8 * 64 + 256 + 2 * 768 + 256)
    assert one.weights_bytes == (EMBED_BYTES + 4 * LAYER_BYTES) // 2 + 4 * rows + 9 * NORM_BYTES
    assert one.key.differences(wide.key.inputs) == ["quantization"]
    assert one.names == wide.names  # no more programs
    recipe = {entry["name"]: (entry["dtype"], entry["sharding"]) for entry in four.recipe()}
    assert recipe["layers.0.qkv"] == ("int8", ["model", None, None, None])
    assert recipe["layers.0.qkv.scale"] == ("float32", ["model", None, None])
    assert recipe["layers.0.gate_up.scale"] == ("float32", [None, "model"])
    assert recipe["layers.0.down.scale"] == ("float32", [None])
    assert recipe["final_norm"] == ("bfloat16", [None])


def test_a_cache_in_8_bits_is_planned_and_keyed_with_a_scale_for_each_token_and_head():
    wide, stored = plan(1), plan(1, kv_dtype="int8")
    assert stored.key.differences(wide.key.inputs) == ["kv_dtype"]
    assert (wide.shapes, wide.names, wide.weights_bytes) == (stored.shapes, stored.names, stored.weights_bytes)
    positions = wide.shapes.num_pages * wide.shapes.page_size
    # Of each of 2 heads' keys and values in 4 layers: 64 elements of bfloat16, or of int8 and a scale of float32.
    assert wide.memory_bytes - stored.memory_bytes == positions * 2 * 4 * 2 * (64 * 2 - (64 + 4))
    assert stored.ready_fields["kv_dtype"] == "int8"


@pytest.mark.parametrize(
    ("device", "kv_dtype", "remedy"),
    [
        (NamedDevice(0, "tpu", "TPU v6 lite"), "bfloat16", "8 bits or DTYPE, here float32. Set it to auto"),
        (
            NamedDevice(0, "gpu", "NVIDIA A100", compute_capability="8.0"),
            "fp8",
            "not NVIDIA A100. Set it to int8",
        ),
    ],
)
def test_a_cache_that_a_kernel_does_not_read_is_refused(device: NamedDevice, kv_dtype: str, remedy: str):
    with pytest.raises(SettingsError, match=f"KV_DTYPE: is {kv_dtype}.*{remedy}"):
        choose_kv_dtype(kv_dtype, np.dtype("float32" if device.platform == "tpu" else "bfloat16"), device)


def test_a_gpu_from_ada_on_caches_in_fp8():
    device = NamedDevice(0, "gpu", "NVIDIA L4", compute_capability="8.9")
    assert choose_kv_dtype("fp8", np.dtype(ml_dtypes.bfloat16), device) == ml_dtypes.float8_e4m3fn


def test_int8_rows_whose_sums_could_overflow_are_refused():
    checkpoint = locate(str(DEMO), LocalSource)
    wide = replace(checkpoint, hub_config={**checkpoint.hub_config, "intermediate_size": 132_105})
    device = NamedDevice(0, client=SimpleNamespace(platform_version="1"), limit_bytes=10**12)
    with pytest.raises(SettingsError, match="QUANTIZATION: is int8, whose sums overflow beyond 132,104 products"):
        choose_engine_spec(Settings(quantization="int8"), wide, [device])


def test_an_impossible_number_is_refused_with_the_models_numbers():
    with pytest.raises(
        SettingsError, match=r"TENSOR_PARALLEL: is 3\..* num_attention_heads = 4 .* Possible values: 1, 2, 4\."
    ):
        plan(4, tensor_parallel=3)


def on_chip(chip: Chip, num_slots: int, **settings) -> EngineSpec:
    """Plan Llama 3.1 8B on a chip."""
    client = SimpleNamespace(platform_version="1")
    device = NamedDevice(0, chip.platform, chip.device_kind, client, chip.memory_bytes, chip.compute_capability)
    located = replace(locate(str(DEMO), LocalSource), hub_config=dict(MODELS["Llama 3.1 8B"]))
    return choose_engine_spec(Settings(max_num_seqs=num_slots, **settings), located, [device])


@pytest.mark.parametrize(
    ("chip", "num_slots", "chunk_tokens", "most_executables"),
    [
        (L4, 16, 512, 55),
        (H100, 64, 2048, 60),
        (H200, 64, 2048, 60),
        (RTX_PRO_6000, 64, 2048, 60),
        (V6E, 64, 2048, 60),
        (Chip("gpu", "NVIDIA A100-SXM4-80GB", 84_000_000_000, "8.0"), 16, 512, 55),
    ],
)
def test_a_step_takes_as_much_of_prompts_as_suits_the_chip(chip, num_slots, chunk_tokens, most_executables):
    spec = on_chip(chip, num_slots)
    assert spec.shapes.max_prefill_tokens == chunk_tokens
    assert len(spec.names.every) <= most_executables
    assert on_chip(chip, num_slots, max_prefill_tokens=1024).shapes.max_prefill_tokens == 1024


@pytest.fixture
def kernel_of():
    """Plan the demo model on one accelerator, and return what was chosen for its attention."""

    def choose(platform: str, kind: str, capability: str = "", **sizes: Any):
        device = NamedDevice(0, platform, kind, SimpleNamespace(platform_version="1"), LIMIT_BYTES, capability)
        checkpoint = locate(str(DEMO), LocalSource)
        checkpoint = replace(checkpoint, hub_config={**checkpoint.hub_config, **sizes})
        return choose_engine_spec(Settings(max_prefill_tokens=256), checkpoint, [device]).kernel

    return choose


def test_a_host_cache_that_holds_no_adapter_is_refused_with_its_size():
    with pytest.raises(SettingsError, match=r"LORA_CACHE_BYTES: is 1,000, less than one adapter of MAX_LORA_RANK 8"):
        plan(1, max_loras=2, max_lora_rank=8, lora_cache_bytes=1000)


def test_the_slow_reference_is_a_warning_that_tells_why(kernel_of, caplog):
    assert kernel_of("gpu", "Tesla T4", "7.5").name == KernelName.REFERENCE
    (record,) = [record for record in caplog.records if hasattr(record, "kernel")]
    assert record.levelno == logging.WARNING
    assert "Tesla T4 (compute capability 7.5)" in record.reason


GEMMA_4 = {
    **{"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "hidden_size_per_layer_input": 0},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    **{"num_hidden_layers": 6, "hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 2048},
}


@pytest.mark.parametrize(
    ("platform", "kind", "capability", "names"),
    [
        ("cpu", "cpu", "", "native"),
        ("gpu", "NVIDIA L4", "8.9", "triton"),
        ("gpu", "Tesla T4", "7.5", "reference"),
        ("tpu", "TPU v5 lite", "", "kv8"),
    ],
)
def test_each_kind_of_heads_has_a_kernel_of_its_own(kernel_of, platform, kind, capability, names):
    choices = kernel_of(platform, kind, capability, **GEMMA_4)
    assert choices.name == names
    assert choices.of(4, 256).name == names.partition("+")[0]
    assert (choices.of(1, 512).cached_head_dim, choices.of(1, 512).cached_kv_heads) == (512, 1)


def test_the_kernel_and_its_padding_are_told(kernel_of, caplog):
    caplog.set_level(logging.INFO)
    assert kernel_of("tpu", "TPU v5 lite", head_dim=80).name == KernelName.RAGGED
    (record,) = [record for record in caplog.records if hasattr(record, "kernel")]
    assert (record.levelno, record.kernel) == (logging.INFO, "ragged")
    assert (record.head_dim, record.cached_head_dim) == (80, 128)


def test_a_tpu_caches_8_bits_in_pages_of_whole_registers(caplog):
    caplog.set_level(logging.INFO)
    checkpoint = locate(str(DEMO), LocalSource)
    device = NamedDevice(0, "tpu", "TPU v6 lite", SimpleNamespace(platform_version="1"), LIMIT_BYTES)
    sizes = {"max_prefill_tokens": 256, "max_num_seqs": 1, "max_model_len": 256, "kv_dtype": "int8"}
    spec = choose_engine_spec(Settings(**sizes), checkpoint, [device])
    assert caplog.records[-1].kernel == "kv8"
    assert (spec.kernel.name, spec.shapes.page_size, spec.formats.kv_dtype) == (KernelName.KV8, 128, np.dtype(np.int8))
    config, positions = spec.config, spec.shapes.num_pages * spec.shapes.page_size
    caches = jax.eval_shape(
        lambda: spec.kernel.kernel().initial_cache(
            spec.shapes.layout,
            num_kv_heads=config.heads.num_kv_heads,
            head_dim=config.heads.head_dim,
            dtype=spec.formats.kv_dtype,
        )
    )
    cached_bytes = config.num_layers * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(caches))
    assert cached_bytes == positions * config.num_layers * 2 * spec.kernel.of_heads[0][1].cached_kv_heads * (64 + 4)
    with pytest.raises(SettingsError, match=r"PAGE_SIZE: is 16, and .* takes 128 or 256"):
        choose_engine_spec(Settings(**sizes, page_size=16), checkpoint, [device])


def test_heads_that_a_tpu_adds_are_told_and_their_memory_is_planned(caplog):
    caplog.set_level(logging.INFO)
    checkpoint = locate(str(DEMO), LocalSource)
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 128}
    three = replace(checkpoint, hub_config={**checkpoint.hub_config, **sizes})
    settings = Settings(max_prefill_tokens=256, max_num_seqs=1, max_model_len=256)
    client = SimpleNamespace(platform_version="1")
    devices = (
        NamedDevice(0, "gpu", "NVIDIA L4", client, LIMIT_BYTES, "8.9"),
        NamedDevice(0, "tpu", "TPU v5 lite", client, LIMIT_BYTES),
    )
    on_gpu, on_tpu = (choose_engine_spec(settings, three, [device]) for device in devices)
    record = caplog.records[-1]
    assert (record.kernel, record.kv_heads, record.cached_kv_heads) == ("ragged", 3, 4)
    shapes = on_tpu.shapes
    assert (shapes.num_pages, shapes.page_size) == (on_gpu.shapes.num_pages, on_gpu.shapes.page_size)
    of_one_head = 2 * on_tpu.config.num_layers * 128 * on_tpu.formats.kv_dtype.itemsize
    assert on_tpu.memory_bytes - on_gpu.memory_bytes == shapes.num_pages * shapes.page_size * of_one_head


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [({}, (64, 256, 1024)), ({"max_model_len": 512}, (64, 256, 512)), ({"max_image_tokens": 40}, (40,))],
)
def test_images_are_padded_to_few_sizes_that_the_context_has_room_for(tmp_path, settings, sizes):
    checkpoint = tmp_path / "model"
    # As deep as the encoder of Qwen3-VL 2B.
    vision = {"depth": 24, "deepstack_visual_indexes": [5, 11, 17]}
    save_qwen(checkpoint, text={"max_position_embeddings": 4096}, vision=vision)
    spec = choose_engine_spec(Settings(**settings), locate(str(checkpoint), LocalSource), [jax.devices()[0]])
    assert spec.shapes.media.num_rows == sizes
    programs = {name for names in spec.names for name in names if name.startswith("encode-")}
    # The beginning, layers with and without rows that are added to the decoder's, and the end, which keeps the rows.
    assert len(programs) == 4 * len(sizes)


@pytest.mark.parametrize(
    ("platform", "kind", "capability", "kernel", "sees"),
    [("gpu", "NVIDIA L4", "8.9", "triton", True), ("tpu", "TPU v5 lite", "", "kv8", False)],
)
def test_pictures_that_would_take_the_kernel_from_text_are_not_served(
    tmp_path, caplog, platform, kind, capability, kernel, sees
):
    save_gemma4(tmp_path / "model")
    located = locate(str(tmp_path / "model"), LocalSource)
    text = located.hub_config["text_config"]
    values = {**located.hub_config, "text_config": {**text, "head_dim": 256, "global_head_dim": 512}}
    device = NamedDevice(0, platform, kind, SimpleNamespace(platform_version="1"), LIMIT_BYTES, capability)
    settings = Settings(max_num_seqs=1, max_model_len=256, dtype="bfloat16")
    for changed, expected in (({}, sees), ({"use_bidirectional_attention": None}, True)):
        values["text_config"] |= changed
        spec = choose_engine_spec(settings, replace(located, hub_config=dict(values)), [device])
        assert spec.kernel.name == kernel
        assert (spec.config.image_encoder is not None, spec.shapes.media is not None) == (expected, expected)
        warned = [record for record in caplog.records if "images are not served here" in record.getMessage()]
        assert len(warned) == (not sees)


def test_the_encoder_of_pictures_and_their_rows_are_in_the_memory_that_is_planned(tmp_path):
    save_gemma4(tmp_path / "model")
    located = locate(str(tmp_path / "model"), LocalSource)
    seeing, blind = (
        choose_engine_spec(Settings(max_num_seqs=2), replace(located, hub_config=values), [jax.devices()[0]])
        for values in (located.hub_config, {**located.hub_config, "vision_config": None})
    )
    media = seeing.shapes.media
    assert media is not None
    assert (media.num_rows, media.place_rows, media.is_whole, blind.shapes.media) == ((24,), 24, True, None)
    encoder = sum(spec.num_bytes for spec in seeing.specs if spec.name.startswith("encoder."))
    rows = media.num_places * media.place_rows * seeing.config.hidden_size * 4
    assert encoder > 0
    assert seeing.memory_bytes - blind.memory_bytes >= encoder + rows
