"""Which files of a folder are the model, and what a folder of another format is told."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.checkpoint.discover import LocatedCheckpoint, locate
from service.errors import AmbiguousCheckpoint, CheckpointError, CheckpointNotFound, MalformedCheckpoint, MissingFile
from service.storage.source import open_source

DEMO = Path(__file__).parents[2] / "service" / "demo"
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    return folder


def located(folder: Path) -> LocatedCheckpoint:
    return locate(str(folder), lambda location: open_source(location, cache_root=folder.parent / "cache"))


def split(folder: Path) -> dict[str, str]:
    """Divide the weights into two shards without an index, and return the file of each tensor."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = dict(zip(SHARDS, (names[::2], names[1::2]), strict=True))
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    return {name: file for file, own in parts.items() for name in own}


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_a_whole_file_is_read_and_not_the_index_of_an_older_save(snapshot: Path):
    write_index(snapshot, {"a": SHARDS[0], "b": SHARDS[1]})
    assert located(snapshot).weight_files == ["model.safetensors"]
    save_file({"a": np.zeros(1)}, snapshot / SHARDS[0])
    assert located(snapshot).weight_files == ["model.safetensors"]


def test_shards_need_no_index(snapshot: Path):
    split(snapshot)
    assert located(snapshot).weight_files == list(SHARDS)
    save_file({"tok_embeddings.weight": np.zeros(1)}, snapshot / "consolidated.safetensors")
    save_file({"a": np.zeros(1)}, snapshot / "adapter_model.safetensors")
    assert located(snapshot).weight_files == list(SHARDS)


def test_an_index_whose_files_are_not_all_there_says_which_are(snapshot: Path):
    write_index(snapshot, split(snapshot))
    (snapshot / SHARDS[1]).unlink()
    with pytest.raises(MissingFile, match=rf"names '{SHARDS[1]}', which is not there \(1 of its 2.*has {SHARDS[0]}"):
        located(snapshot)


def test_an_index_that_names_half_of_the_files_is_refused(snapshot: Path):
    weight_map = split(snapshot)
    write_index(snapshot, {name: file for name, file in weight_map.items() if file == SHARDS[0]})
    with pytest.raises(MalformedCheckpoint, match=f"names 1 of the 2 files of the model, and not {SHARDS[1]}"):
        located(snapshot)


def test_shards_of_which_one_is_missing_are_refused(snapshot: Path):
    split(snapshot)
    (snapshot / SHARDS[0]).unlink()
    with pytest.raises(MissingFile, match=f"one of 2 files, of which 1 are there. Add the others: {SHARDS[0]}"):
        located(snapshot)


def test_a_single_variant_is_served_and_two_are_ambiguous(snapshot: Path):
    (snapshot / "model.safetensors").rename(snapshot / "model.fp16.safetensors")
    assert located(snapshot).weight_files == ["model.fp16.safetensors"]
    shutil.copy(snapshot / "model.fp16.safetensors", snapshot / "model.bf16.safetensors")
    with pytest.raises(AmbiguousCheckpoint, match=r"2 variants.*model.bf16.safetensors, model.fp16.safetensors"):
        located(snapshot)


@pytest.mark.parametrize("stem", ["step", "checkpoint"])
def test_of_a_folder_of_exports_the_newest_whole_one_is_served(tmp_path: Path, stem: str):
    run = tmp_path / "run"
    for step in (90, 100, 200, 300):
        shutil.copytree(DEMO, run / f"{stem}-{step}")
    (run / f"{stem}-200" / "model.safetensors").unlink()
    (run / f"{stem}-300" / "config.json").unlink()
    assert located(run).uri == str(run / f"{stem}-100")


def test_an_export_may_have_its_tokenizer_above(tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(DEMO, run / "step-1")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (run / "step-1" / name).exists():
            (run / "step-1" / name).rename(run / name)
    assert located(run).tokenizer.source.uri == str(run)


def test_a_model_at_the_top_is_served_and_not_the_checkpoints_of_its_training(snapshot: Path):
    shutil.copytree(DEMO, snapshot / "checkpoint-5")
    assert located(snapshot).uri == str(snapshot)


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["model-Q4_K_M.gguf"], "GGUF"),
        (["model.bin", "shared_vocabulary.json", "config.json"], "CTranslate2"),
        (["model.onnx", "config.json"], "ONNX"),
        (["onnx/model.onnx", "config.json"], "ONNX"),
        (["openvino_model.xml", "openvino_model.bin", "config.json"], "OpenVINO"),
        (["megatron.nemo"], "NeMo"),
        (["context/io.json", "context/model.yaml", "weights/__0_0.distcp"], "NeMo"),
        (["ct2/model.bin", "ct2/vocabulary.json"], "CTranslate2"),
        (["model_index.json", "unet/diffusion_pytorch_model.safetensors"], "diffusers"),
        (["tf_model.h5", "config.json"], "TensorFlow"),
        (["saved_model.pb", "variables/variables.index"], "TensorFlow"),
        (["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"], "TensorFlow"),
        (["flax_model.msgpack", "config.json"], "Flax"),
        (["consolidated.00.pth", "params.json"], "Meta"),
        (["mlc-chat-config.json", "params_shard_0.bin"], "MLC"),
        (["rank0.engine", "config.json"], "TensorRT"),
        (["pytorch_model_fsdp_0/__0_0.distcp"], "FSDP"),
        (["weights.npz", "config.json"], "MLX"),
    ],
)
def test_a_folder_of_another_format_is_told_what_it_is_and_what_to_do(tmp_path: Path, names: list[str], what: str):
    for name in names:
        (tmp_path / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / name).write_bytes(b"{}")
    with pytest.raises(CheckpointNotFound, match=rf"holds .*{what}.*not served\. \w+.*") as caught:
        located(tmp_path / "m")
    assert "\n" not in str(caught.value)


def test_what_a_trainer_saves_is_not_taken_for_weights(tmp_path: Path):
    for name in ("config.json", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(CheckpointNotFound, match=r"holds no \*.safetensors"):
        located(tmp_path)


def test_a_folder_of_many_models_names_them_and_the_setting_for_all(tmp_path: Path):
    for number in range(20):
        (tmp_path / "m" / f"model{number:02d}").mkdir(parents=True)
        (tmp_path / "m" / f"model{number:02d}" / "model.safetensors").write_bytes(b"")
    message = r"in 'model00', 'model01', 'model02' and 17 more: set MODEL_URI to one .* or CATALOGUE_URI"
    with pytest.raises(CheckpointNotFound, match=message):
        located(tmp_path / "m")


def test_a_pointer_of_git_lfs_is_named(snapshot: Path):
    from service.checkpoint.limits import LoadLimits
    from service.checkpoint.load import load_on_host
    from service.models.decoder_weights import decoder_weight_specs
    from service.models.registry import read_config
    from service.observability.progress import Progress

    (snapshot / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    found = located(snapshot)
    specs = decoder_weight_specs(read_config(found.uri, found.hub_config))
    with pytest.raises(CheckpointError, match=r"pointer of Git LFS.*git lfs pull"):
        load_on_host(found, specs, LoadLimits(None, Progress(), 2**20))
