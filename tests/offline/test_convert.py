"""`levserve convert`: pickled weights to safetensors, in a folder or a bucket, with all that belongs to them."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from service.checkpoint.layout import INDEX
from service.cli import build_parser
from service.errors import MalformedCheckpoint, RefusedAdapter, RefusedPickle, SettingsError
from service.offline import convert as module
from service.offline.convert import convert
from service.settings import Settings
from tests.checkpoint.adapters.test_read import DOWN, LAYER, summed, written
from tests.checkpoint.streamed import OBJECTS, TENSORS, Loader, same_weights
from tests.checkpoint.test_pickled_loading import FILES, SHARDS
from tests.gcs import GcsBucket, gcs_bucket, gcs_server
from tests.parity.adapter_cases import ADAPTER_CASES
from tests.parity.test_adapters import merged_logits, save_base
from tests.tolerances import SAME_MODEL_ATOL
from tests.weights.pickled.corpus import EXECUTING
from tests.weights.pickled.written import archive, dictionary, pickled, state, storage, view

__all__ = ["gcs_bucket", "gcs_server"]  # fixtures

BASE = np.arange(24, dtype=np.float32).reshape(4, 6)
VIEWS = {
    "plain": BASE,
    "transposed": BASE.T,
    "columns": BASE[:, 1:3],
    "ids": np.arange(3),
    "half": np.float16([1, 2, 3]),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint of pickled shards, with a module of sentence-transformers and files that are not copied."""
    folder = tmp_path / "source"
    (folder / "2_Dense").mkdir(parents=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    value, storages = state({"linear.weight": BASE})
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(archive(pickled(value), storages))
    (folder / "2_Dense" / "config.json").write_text("{}")
    (folder / "picture.png").write_bytes(b"")
    return folder


def settings(tmp_path: Path, **values) -> Settings:
    return Settings(local_model_cache=tmp_path / "cache", **values)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_becomes_one_file_and_keeps_what_belongs_to_it(tmp_path: Path, source: Path):
    target = tmp_path / "target"
    assert convert(str(source), str(target), settings(tmp_path)) == 0
    module_files = {"2_Dense/model.safetensors", "2_Dense/config.json"}
    assert files(target) == {"model.safetensors", "config.json", "tokenizer.json"} | module_files
    written = load_file(target / "model.safetensors")
    assert written.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(written[name].view(np.uint16), tensor.view(np.uint16))
    np.testing.assert_array_equal(load_file(target / "2_Dense" / "model.safetensors")["linear.weight"], BASE)
    assert (target / "config.json").read_bytes() == FILES["config.json"]
    with safe_open(target / "model.safetensors", "np") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_a_bucket_is_converted_into_a_bucket_in_shards_and_served(
    tmp_path: Path, gcs_bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch
):
    for name, data in FILES.items():
        gcs_bucket.upload(f"pickled/{name}", data)
    monkeypatch.setattr(module, "MAX_SHARD_BYTES", 100_000)
    values = settings(tmp_path, storage_emulator_host=gcs_bucket.endpoint)
    assert convert(gcs_bucket.uri("pickled"), gcs_bucket.uri("safe"), values) == 0
    loader = Loader(gcs_bucket.endpoint, gcs_bucket.name, tmp_path / "other", prefix="safe")
    located = loader.locate()
    assert len(located.layout.weights) > 1
    assert same_weights(loader.load_located(located))
    names = [info.name for info in located.layout.weights]
    count = f"{len(names):05d}"
    assert sorted(names) == [f"model-{number + 1:05d}-of-{count}.safetensors" for number in range(len(names))]
    index = json.loads(located.weights.source.read(next(f for f in located.weights.objects if f.name == INDEX)))
    assert index["metadata"] == {"total_size": sum(tensor.nbytes for tensor in TENSORS.values())}
    assert index["weight_map"].keys() == TENSORS.keys()


def test_views_of_every_kind_are_written_as_they_are_seen(tmp_path: Path):
    (tmp_path / "source").mkdir()
    value, storages = state(VIEWS)
    (tmp_path / "source" / "pytorch_model.bin").write_bytes(archive(pickled(value), storages))
    convert(str(tmp_path / "source"), str(tmp_path / "target"), settings(tmp_path))
    written = load_file(tmp_path / "target" / "model.safetensors")
    assert written.keys() == VIEWS.keys()
    for name, tensor in VIEWS.items():
        np.testing.assert_array_equal(written[name], tensor)
        assert written[name].dtype == tensor.dtype


def test_a_conversion_that_was_interrupted_goes_on_and_a_complete_one_is_left_alone(tmp_path: Path, source: Path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "model.safetensors").write_bytes(b"half")
    convert(str(source), str(target), settings(tmp_path))
    assert load_file(target / "model.safetensors").keys() == TENSORS.keys()
    with pytest.raises(SettingsError, match=r"TARGET: .* contains a complete checkpoint"):
        convert(str(source), str(target), settings(tmp_path))


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, source: Path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine.txt").touch()
    with pytest.raises(SettingsError, match=r"contains 'mine\.txt' of another origin"):
        convert(str(source), str(tmp_path / "target"), settings(tmp_path))
    assert files(tmp_path / "target") == {"mine.txt"}


def test_a_pickle_that_would_run_code_leaves_nothing_behind(tmp_path: Path, source: Path):
    (source / SHARDS[0]).write_bytes(EXECUTING["os.system"][0])
    with pytest.raises(RefusedPickle, match=r"asks for 'os\.system'"):
        convert(str(source), str(tmp_path / "target"), settings(tmp_path))
    assert not (tmp_path / "target").exists()


def test_safetensors_need_no_conversion(tmp_path: Path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(SettingsError, match="there is nothing to convert"):
        convert(str(tmp_path), str(tmp_path / "target"), settings(tmp_path))


@pytest.mark.parametrize(("num_tensors", "reason"), [(0, "has no tensors"), (50, "share elements")])
def test_a_file_that_would_grow_without_bound_is_refused(tmp_path: Path, num_tensors: int, reason: str):
    (tmp_path / "source").mkdir()
    whole = view(storage("0", 10_000), (10_000,))
    content = archive(pickled(dictionary({f"t{number}": whole for number in range(num_tensors)})), {"0": bytes(40_000)})
    if num_tensors == 0:
        content = archive(pickled(dictionary({})), {})
    (tmp_path / "source" / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(MalformedCheckpoint, match=reason):
        convert(str(tmp_path / "source"), str(tmp_path / "target"), settings(tmp_path))


def test_the_command_takes_two_addresses():
    parsed = build_parser().parse_args(["convert", "gs://a/b", "out"])
    assert (parsed.command, parsed.source, parsed.target) == ("convert", "gs://a/b", "out")


def test_an_adapter_is_merged_into_a_checkpoint_that_loads_as_if_it_were_merged_then(tmp_path: Path):
    base, adapter = tmp_path / "base", written(tmp_path / "adapter")
    base.mkdir()
    for name, data in OBJECTS.items():
        (base / name).write_bytes(data)
    convert(str(base), str(tmp_path / "merged"), settings(tmp_path), str(adapter))
    merged, stored = load_file(tmp_path / "merged" / "model.safetensors"), np.dtype(ml_dtypes.bfloat16)
    assert merged.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        is_updated = name in (f"{LAYER}.weight", f"{DOWN}.weight")
        expected = summed(name.removesuffix(".weight")).astype(stored) if is_updated else tensor
        assert merged[name].dtype == stored
        np.testing.assert_allclose(merged[name].astype(np.float32), expected.astype(np.float32), rtol=2**-7)
    assert files(tmp_path / "merged") == {"model.safetensors", "config.json", "tokenizer.json"}
    with pytest.raises(RefusedAdapter, match="rank 2"):
        convert(str(base), str(tmp_path / "other"), settings(tmp_path), str(written(adapter, r=2)))
    assert not (tmp_path / "other").exists()


WRAPPED = {
    "compiled": lambda name: f"_orig_mod.{name}",
    "data-parallel": lambda name: f"module.{name}",
    "PEFT": lambda name: f"base_model.model.{name.replace('_proj.', '_proj.base_layer.')}",
    "bare": lambda name: name.removeprefix("model."),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_an_adapter_is_merged_into_tensors_whose_names_are_wrapped(tmp_path: Path, wrapper: str):
    base, adapter, renamed = tmp_path / "base", written(tmp_path / "adapter"), WRAPPED[wrapper]
    base.mkdir()
    for name, data in OBJECTS.items():
        if name.endswith(".json") and "index" not in name:
            (base / name).write_bytes(data)
    save_file({renamed(name): tensor for name, tensor in TENSORS.items()}, base / "model.safetensors")
    convert(str(base), str(tmp_path / "merged"), settings(tmp_path), str(adapter))
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert merged.keys() == {renamed(name) for name in TENSORS}
    for name, tensor in TENSORS.items():
        is_updated = name in (f"{LAYER}.weight", f"{DOWN}.weight")
        expected = summed(name.removesuffix(".weight")) if is_updated else tensor.astype(np.float32)
        np.testing.assert_allclose(merged[renamed(name)].astype(np.float32), expected, rtol=2**-7)
        assert is_updated != np.array_equal(merged[renamed(name)], tensor)


def test_an_adapter_is_merged_into_tensors_that_are_stored_the_other_way_round(tmp_path: Path):
    case = next(case for case in ADAPTER_CASES if case.name == "gpt2")
    base, adapter = save_base(case.model, tmp_path / "base"), case.save(tmp_path / "adapter")
    convert(str(base), str(tmp_path / "merged"), settings(tmp_path), str(adapter))
    logits = merged_logits(tmp_path / "merged", None, case.model.token_ids)
    np.testing.assert_allclose(logits, case.reference_logits(), atol=SAME_MODEL_ATOL, rtol=0)


def test_an_adapter_needs_a_checkpoint_that_is_not_quantized(tmp_path: Path):
    tensors = {name: tensor for name, tensor in TENSORS.items() if name != f"{DOWN}.weight"}
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_bytes(OBJECTS["config.json"])
    (base / "tokenizer.json").write_bytes(OBJECTS["tokenizer.json"])
    save_file(tensors | {f"{DOWN}.weight_packed": np.zeros((64, 20), np.int32)}, base / "model.safetensors")
    with pytest.raises(MalformedCheckpoint, match="is of a quantized model, of which"):
        convert(str(base), str(tmp_path / "merged"), settings(tmp_path), str(written(tmp_path / "adapter")))
