"""A checkpoint whose tensors have other names, files or a copy of the head is loaded as the plain one is."""

import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import LocatedCheckpoint, locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.errors import MalformedCheckpoint, UnsupportedModel
from service.models.decoder_weights import decoder_weight_specs
from service.models.description import DecoderConfig
from service.models.encoders.registry import any_encoder_weight_specs, read_encoder_config
from service.models.encoders.token_scores import SCORE_TOKEN_IDS
from service.models.registry import OWN_HEAD, read_config
from service.models.weight_spec import bare_name
from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache
from service.storage.local import LocalSource
from service.storage.source import open_source
from tests.gcs import GcsBucket
from tests.parity.cases import CASES, Case
from tests.parity.encoder_cases import ENCODER_CASES, EncoderCase
from tests.parity.encoder_cases import tensor as encoder_tensor
from tests.parity.family_cases import FAMILY_CASES
from tests.served import DEMO

type Tensors = Mapping[str, np.ndarray]

EVERY = {case.name: case for case in (*CASES, *FAMILY_CASES)}
# One of each family.
FAMILIES = list({case.model_type: case.name for case in reversed(EVERY.values())}.values())
HEADS = ("lm_head.weight",)


def segment(name: str, inserted: str, before: str) -> str:
    """Insert a wrapper's segment before the segments that it wraps."""
    return ".".join(f"{inserted}.{part}" if part == before else part for part in name.split("."))


def bare(name: str) -> str:
    return name if name in HEADS else bare_name(name)


WRAPPERS: dict[str, Callable[[str], str]] = {
    "torch.compile": lambda name: f"_orig_mod.{name}",
    "torch.compile of the bare model": lambda name: name.replace("model.", "model._orig_mod.", 1),
    "DDP": lambda name: f"module.{name}",
    "DDP of torch.compile": lambda name: f"module._orig_mod.{name}",
    "FSDP": lambda name: f"_fsdp_wrapped_module.{segment(name, '_fsdp_wrapped_module', 'mlp')}",
    "activation checkpointing": lambda name: segment(name, "_checkpoint_wrapped_module", "self_attn"),
    "PEFT": lambda name: f"base_model.model.{name.replace('_proj.weight', '_proj.base_layer.weight')}",
    "PEFT's modules": lambda name: name.replace("lm_head.", "base_model.model.lm_head.modules_to_save.default."),
    "Lightning": lambda name: f"model.{name}",
    "a state dictionary": lambda name: f"state_dict.model.{name}",
    "Lightning Fabric": lambda name: f"_forward_module.{name}",
    "a name of one's own": lambda name: f"policy.llm.{name}",
    "a vision model's text": lambda name: f"language_model.{name}",
    "the bare model's": bare,
    "the bare model's, wrapped": lambda name: f"module.{bare(name)}",
}


def write(folder: Path, config: Mapping[str, object], *files: Tensors) -> Path:
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    if len(files) == 1:
        save_file(dict(files[0]), folder / "model.safetensors")
        return folder
    weight_map = {}
    for number, tensors in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file(dict(tensors), folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def halves(tensors: Tensors) -> tuple[Tensors, Tensors]:
    names = sorted(tensors)
    return {name: tensors[name] for name in names[::2]}, {name: tensors[name] for name in names[1::2]}


def described(folder: Path) -> tuple[LocatedCheckpoint, DecoderConfig]:
    located = locate(str(folder), LocalSource)
    return located, read_config("m", located.hub_config)


def load(folder: Path) -> dict[str, np.ndarray]:
    located, config = described(folder)
    return load_on_host(located, decoder_weight_specs(config), LoadLimits(None, Progress(), 1 << 20)).weights


def assert_same(weights: Tensors, others: Tensors) -> None:
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(weight, others[name], err_msg=name)


def check_wrapped(folder: Path, case: Case, wrapper: str, *, in_shards: bool) -> None:
    tensors = case.tensors()
    if (folder / "plain").exists():
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    plain = load(write(folder / "plain", case.hub_config, tensors))
    wrapped = {WRAPPERS[wrapper](name): tensor for name, tensor in tensors.items()}
    files = halves(wrapped) if in_shards else (wrapped,)
    assert_same(load(write(folder / "wrapped", case.hub_config, *files)), plain)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_names_are_those_of_the_model(tmp_path: Path, wrapper: str):
    check_wrapped(tmp_path / "llama", EVERY["llama_grouped_heads"], wrapper, in_shards=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_names_of_every_family_may_be_wrapped_or_bare(tmp_path: Path, name: str):
    for wrapper in ("PEFT", "the bare model's"):
        check_wrapped(tmp_path / wrapper, EVERY[name], wrapper, in_shards=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_wrapper_of_every_case_in_one_file_and_in_shards(tmp_path: Path, name: str):
    for number, (wrapper, in_shards) in enumerate(itertools.product(WRAPPERS, (False, True))):
        check_wrapped(tmp_path / str(number), EVERY[name], wrapper, in_shards=in_shards)


def encoder_tensors(case: EncoderCase) -> Tensors:
    values = {**case.hub_config, SCORE_TOKEN_IDS: [1, 2]}
    specs = any_encoder_weight_specs(read_encoder_config("m", values), np.dtype(np.float32))
    return {source.name: encoder_tensor(source.name, source.shape) for spec in specs for source in spec.sources}


def load_encoder(folder: Path) -> dict[str, np.ndarray]:
    located = locate(str(folder), LocalSource)
    config = read_encoder_config("m", located.hub_config, located.sentence_files, located.weight_files)
    specs = any_encoder_weight_specs(config, np.dtype(np.float32))
    return load_on_host(located, specs, LoadLimits(None, Progress(), 1 << 20)).weights


ENCODERS = {case.name: case for case in ENCODER_CASES if not case.scores_by_tokens}
PRETRAINED = {
    "cls.predictions.bias": 9,
    "cls.predictions.transform.LayerNorm.gamma": 9,
    "cls.predictions.transform.LayerNorm.beta": 9,
    "cls.predictions.transform.dense.weight": 9,
    "cls.predictions.decoder.weight": 9,
    "cls.seq_relationship.weight": 9,
    "lm_head.dense.weight": 9,
    "lm_head.layer_norm.weight": 9,
    "lm_head.decoder.weight": 9,
    "lm_head.bias": 9,
    "qa_outputs.weight": 9,
    "{}embeddings.position_ids": 9,
    "{}pooler.dense.bias": 9,
}


@pytest.mark.parametrize("prefix", ["", "bert.", "roberta.", "model.", "0.auto_model.", "module.bert."])
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_may_have_any_prefix_old_names_of_norms_and_heads_of_pretraining(
    tmp_path: Path, name: str, prefix: str
):
    case, tensors = ENCODERS[name], encoder_tensors(ENCODERS[name])
    plain = load_encoder(write(tmp_path / "plain", case.hub_config, tensors))
    heads = ("classifier", "score", "head")

    def named(name: str) -> str:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return old if name.startswith(heads) else f"{prefix}{old}"

    beside = {name.format(prefix): np.ones(size, np.float32) for name, size in PRETRAINED.items()}
    beside = {name: tensor for name, tensor in beside.items() if not name.startswith("classifier")}
    wrapped = beside | {named(name): tensor for name, tensor in tensors.items()}
    assert_same(load_encoder(write(tmp_path / "wrapped", case.hub_config, wrapped)), plain)


LLAMA = EVERY["llama_grouped_heads"]
TENSORS = LLAMA.tensors()
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TIED = {name: tensor for name, tensor in TENSORS.items() if name != HEAD}


def config(*, is_tied: bool | None = False, **more: object) -> dict[str, object]:
    values = {**LLAMA.hub_config, "tie_word_embeddings": is_tied, **more}
    return {key: value for key, value in values.items() if value is not None}


@pytest.mark.parametrize("is_tied", [True, False, None])
@pytest.mark.parametrize("prefix", ["", "module.", "base_model.model."])
def test_a_head_in_the_files_is_served_and_an_absent_one_is_tied(tmp_path: Path, is_tied: bool | None, prefix: str):
    heads = {"own": TENSORS[HEAD], "equal": TENSORS[EMBED], "absent": None}
    for kind, head in heads.items():
        tensors = {f"{prefix}{name}": tensor for name, tensor in {**TIED, HEAD: head}.items() if tensor is not None}
        folder = write(tmp_path / kind, config(is_tied=is_tied), *halves(tensors))
        has_own_head = kind == "own" or (kind == "equal" and not is_tied)
        assert described(folder)[1].has_tied_embeddings is not has_own_head, kind
        weights = load(folder)
        assert ("unembed" in weights) is has_own_head
        np.testing.assert_array_equal(
            weights.get("unembed", weights["embed"]), TENSORS[EMBED] if head is None else head
        )


@pytest.mark.parametrize("name", ["score.weight", "v_head.summary.weight", "classifier.weight", "score.0.weight"])
def test_the_head_of_another_task_does_not_stand_for_that_of_tokens(tmp_path: Path, name: str):
    beside = {name: np.ones((1, 32), np.float32)}
    with pytest.raises(UnsupportedModel, match=f"a head of its own, and the files have only another: {name}"):
        described(write(tmp_path / "own", config(is_tied=False), {**TIED, **beside}))
    assert described(write(tmp_path / "tied", config(is_tied=True), {**TIED, **beside}))[1].has_tied_embeddings
    assert not described(write(tmp_path / "whole", config(is_tied=False), {**TENSORS, **beside}))[1].has_tied_embeddings


@pytest.mark.parametrize(
    "architecture", ["LlamaForTokenClassification", "LlamaForRewardModel", "LlamaForProcessReward"]
)
def test_a_class_that_judges_texts_is_not_served_as_one_that_writes_them(tmp_path: Path, architecture: str):
    values = config(is_tied=True, architectures=[architecture])
    with pytest.raises(UnsupportedModel, match=f"architectures is {architecture}, a model that judges texts"):
        described(write(tmp_path / "m", values, TIED))
    assert "unembed" in load(write(tmp_path / "n", values, TENSORS))


def test_a_head_that_differs_in_one_number_is_served(tmp_path: Path):
    head = TENSORS[EMBED].copy()
    head[-1, -1] += 1
    assert "unembed" in load(write(tmp_path / "m", config(is_tied=True), {**TIED, HEAD: head}))


def test_a_head_of_another_type_is_served(tmp_path: Path):
    head = TENSORS[EMBED].astype(np.float64) / 3
    weights = load(write(tmp_path / "m", config(is_tied=True), {**TIED, HEAD: head}))
    np.testing.assert_array_equal(weights["unembed"], head.astype(np.float32))


def test_the_embeddings_may_have_the_name_of_the_head_alone(tmp_path: Path):
    tensors = {name: tensor for name, tensor in TIED.items() if name != EMBED} | {HEAD: TENSORS[EMBED]}
    assert_same(
        load(write(tmp_path / "m", config(is_tied=True), tensors)),
        load(write(tmp_path / "n", config(is_tied=True), TIED)),
    )


def test_of_shared_tensors_one_may_stand_for_another(tmp_path: Path):
    """As `safetensors.torch.save_model` writes them."""
    folder = write(tmp_path / "m", config(is_tied=False), TIED)
    tensors = {name: tensor for name, tensor in TIED.items() if name != EMBED} | {HEAD: TENSORS[EMBED]}
    save_file(tensors, folder / "model.safetensors", metadata={EMBED: HEAD})
    weights = load(folder)
    np.testing.assert_array_equal(weights["embed"], TENSORS[EMBED])
    np.testing.assert_array_equal(weights["unembed"], TENSORS[EMBED])


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_what_can_be_cast_is_cast(tmp_path: Path, dtype: type):
    names = sorted(TENSORS)
    stored = {name: TENSORS[name].astype(dtype if names.index(name) % 2 else np.float32) for name in names}
    expected = {name: tensor.astype(np.float32) for name, tensor in stored.items()}
    assert_same(load(write(tmp_path / "m", config(), stored)), load(write(tmp_path / "n", config(), expected)))


LAYER = "model.layers.0."
BESIDE = {
    "v_head.summary.weight": 1,
    "v_head.summary.bias": 1,
    "score.weight": 2,
    "value_head.weight": 1,
    "model.rotary_emb.inv_freq": 4,
    f"{LAYER}self_attn.rotary_emb.inv_freq": 4,
    f"{LAYER}self_attn.k_scale": 1,
    f"{LAYER}self_attn.v_scale": 1,
    f"{LAYER}self_attn.k_proj.output_scale": 1,
    "mtp.fc.weight": 4,
    "mtp.layers.0.self_attn.q_proj.weight": 4,
    "model.mtp_layers.0.mlp.up_proj.weight": 4,
    "model.layers.3.eh_proj.weight": 4,
    "model.layers.3.self_attn.q_proj.weight": 4,
    "model.layers.3.shared_head.head.weight": 4,
    "vision_tower.encoder.layers.0.self_attn.q_proj.weight": 4,
    "model.vision_tower.encoder.layers.0.self_attn.q_proj.weight": 4,
    "model.multi_modal_projector.linear_1.weight": 4,
    "ref_model.model.layers.0.self_attn.q_proj.weight": 4,
    "optimizer.state.0.exp_avg": 4,
    "lm_head.original_module.weight": 4,
}


def test_what_changes_no_result_is_left_out_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    beside = {name: np.ones(size, np.float32) for name, size in BESIDE.items()}
    plain = load(write(tmp_path / "plain", config(), TENSORS))
    caplog.clear()
    assert_same(load(write(tmp_path / "m", config(), {**TENSORS, **beside})), plain)
    [record] = [record for record in caplog.records if "left_out" in record.__dict__]
    assert "v_head.summary.bias, v_head.summary.weight" in str(record.__dict__["left_out"])


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "base_model.model."])
def test_biases_that_a_model_does_not_have_are_left_out_if_they_are_zero(
    tmp_path: Path, prefix: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    names = [name.replace(".weight", ".bias") for name in TENSORS if "norm" in name or "_proj" in name or name == HEAD]
    biases = {f"{prefix}{name}": np.zeros(48, np.float16) * -1 for name in names}
    tensors = {f"{prefix}{name}": tensor for name, tensor in TENSORS.items()}
    plain = load(write(tmp_path / "plain", config(), TENSORS))
    assert_same(load(write(tmp_path / "m", config(is_tied=True), *halves({**tensors, **biases}))), plain)
    assert "biases that are zero" in str([record.__dict__.get("left_out") for record in caplog.records])
    biases[f"{prefix}{names[3]}"][7] = 1e-4
    with pytest.raises(MalformedCheckpoint, match=r"They are biases, and not zero"):
        load(write(tmp_path / "n", config(), {**tensors, **biases}))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (f"{LAYER}self_attn.q_proj.bias", "They are biases"),
        (f"{LAYER}self_attn.q_norm.weight", "Check model_type"),
        (f"{LAYER}mlp.shared_expert.up_proj.weight", "Check model_type"),
        ("model.layers.7.input_layernorm.weight", "The files have 8 layers, and config.json fewer"),
        ("lm_head.bias", "They are biases"),
        ("model.embed_norm.weight", "Check model_type"),
        (f"{LAYER}self_attn.q_proj.lora_A.default.weight", "an adapter that is not merged"),
        (f"{LAYER}self_attn.q_proj.weight_scale", "quantization_config"),
        (f"{LAYER}self_attn.q_proj.weight.absmax", "bitsandbytes"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_what_changes_results_is_refused_with_what_it_is(tmp_path: Path, name: str, reason: str, prefix: str):
    tensors = {f"{prefix}{key}": tensor for key, tensor in {**TENSORS, name: np.ones(4, np.float32)}.items()}
    folder = write(tmp_path / "m", config(), tensors)
    with pytest.raises(MalformedCheckpoint, match=rf"{name}: 1 tensors such as this one have no place.*{reason}"):
        load(folder)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["foo.bar.weight", "foo.baz.weight"], r"The files have 2 tensors, all named 'foo\.' and so on"),
        (["tok_embeddings.weight", "layers.0.attention.wq.weight"], "format of Meta's and Mistral's own code"),
        (["blk.0.attn_q.weight"], "those of GGUF"),
        (["_fsdp_wrapped_module._flat_param"], "flat parameters of FSDP"),
        (["decoder.layers.0.self_attention.linear_qkv.weight"], "Megatron or NeMo"),
        (["model.layers.0.self_attn.q_proj.qweight"], "of AWQ or GPTQ, of which config.json has no fitting"),
        (["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"], "adapter that is not merged"),
    ],
)
def test_a_missing_tensor_is_told_with_what_is_there(tmp_path: Path, names: list[str], reason: str):
    folder = write(tmp_path / "m", config(), {name: np.ones(4, np.float32) for name in names})
    with pytest.raises(MalformedCheckpoint, match=rf"is missing.*{reason}") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert "pload" not in str(caught.value)


def test_names_that_mean_one_tensor_must_be_equal(tmp_path: Path):
    copies = {f"_orig_mod.{name}": tensor for name, tensor in TENSORS.items()}
    plain = load(write(tmp_path / "plain", config(), TENSORS))
    assert_same(load(write(tmp_path / "equal", config(), TENSORS, copies)), plain)
    name = f"{LAYER}mlp.up_proj.weight"
    copies[f"_orig_mod.{name}"] = copies[f"_orig_mod.{name}"] + 1
    folder = write(tmp_path / "unequal", config(), TENSORS, copies)
    with pytest.raises(MalformedCheckpoint, match=rf"{name}: the files have two .*'_orig_mod.{name}'.*they differ"):
        load(folder)


def test_two_models_under_two_names_are_ambiguous(tmp_path: Path):
    tensors = {f"{of}.{name}": tensor for of in ("actor", "critic") for name, tensor in TENSORS.items()}
    with pytest.raises(MalformedCheckpoint, match=r"begin with 'actor\.model\.' and with 'critic\.model\.'"):
        load(write(tmp_path / "m", config(), tensors))


def test_a_copy_that_samples_do_not_tell_apart_is_refused_by_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from service.checkpoint import samples

    monkeypatch.setattr(samples, "WHOLE_BYTES", 64)
    monkeypatch.setattr(samples, "SAMPLE_BYTES", 8)
    other = TENSORS[EMBED].copy()
    other[1, 3] += 1
    folder = write(tmp_path / "m", config(is_tied=True), {**TIED, HEAD: other})
    assert described(folder)[0].hub_config[OWN_HEAD] is False
    with pytest.raises(MalformedCheckpoint, match=r"two such tensors.*lm_head.weight.*differ"):
        load(folder)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_folder_a_bucket_its_second_start_and_a_stream_are_alike(
    tmp_path: Path, gcs_bucket: GcsBucket, is_tied: bool
):
    """The head and the names are those of the folder, and a second start reads no weights from the bucket."""
    head = {} if not is_tied else {f"_orig_mod.{HEAD}": TENSORS[HEAD]}
    folder = write(tmp_path / "m", config(is_tied=is_tied), {f"_orig_mod.{name}": t for name, t in TIED.items()} | head)
    plain = load(folder)
    assert ("unembed" in plain) is is_tied
    gcs_bucket.upload_directory(folder, "m")
    cache = CheckpointCache(tmp_path / "cache", max_checkpoints=2)
    for kept in (None, cache, cache):
        gcs_bucket.faults([])
        located = locate(
            gcs_bucket.uri("m"),
            lambda location: open_source(location, cache_root=tmp_path, emulator_host=gcs_bucket.endpoint),
            cache=kept,
        )
        specs = decoder_weight_specs(read_config("m", located.hub_config))
        assert_same(load_on_host(located, specs, LoadLimits(kept, Progress(), 1 << 20)).weights, plain)
    assert not gcs_bucket.requests(r"safetensors\?alt=media")
