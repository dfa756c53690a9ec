"""An address leads to a described checkpoint, or to an error that names the setting for a missing file."""

import json
import shutil
from pathlib import Path

import pytest

from service.checkpoint.discover import locate
from service.errors import AmbiguousCheckpoint, CheckpointError, MalformedCheckpoint, MissingFile, UnsupportedModel
from service.models.registry import read_config
from service.storage.source import open_source

DEMO = Path(__file__).parents[2] / "service" / "demo"


@pytest.fixture
def snapshot(tmp_path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    return folder


def locate_in(tmp_path, uri, **settings):
    return locate(str(uri), lambda location: open_source(location, cache_root=tmp_path / "cache"), **settings)


def make_run(folder: Path, step: int = 3) -> Path:
    """Create the files by which a Levanter run is detected, without weights."""
    step_folder = folder / f"step-{step}"
    (step_folder / "d").mkdir(parents=True)
    for name in ("manifest.ocdbt", "metadata.json", "d/0a"):
        (step_folder / name).write_text("{}")
    arrays = [{"path": "model/embeddings/token_embeddings/weight", "shape": [96, 32]}]
    (step_folder / "manifest.json").write_text(json.dumps({"arrays": arrays}))
    return step_folder


def test_a_snapshot_is_described_and_pulled_as_one_group(tmp_path, snapshot):
    located = locate_in(tmp_path, snapshot)
    assert located.hub_config["model_type"] == "llama"
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= {
        info.name for info in located.weights.objects
    }
    assert set(located.tokenizer.objects) <= set(located.weights.objects)


@pytest.mark.parametrize(
    ("missing", "setting"),
    [("config.json", "MODEL_CONFIG_URI"), ("tokenizer.json", "TOKENIZER_URI")],
)
def test_a_missing_file_is_named_with_its_setting(tmp_path, snapshot, missing, setting):
    (snapshot / missing).unlink()
    with pytest.raises(MissingFile, match=rf"{missing} is missing.*{setting}"):
        locate_in(tmp_path, snapshot)


@pytest.mark.parametrize("missing", [None, "vocab.json", "merges.txt"])
def test_gpt2s_pair_of_files_is_a_tokenizer_and_one_of_them_is_none(tmp_path, snapshot, missing):
    (snapshot / "tokenizer.json").unlink()
    for name in {"vocab.json", "merges.txt", "added_tokens.json"} - {missing}:
        (snapshot / name).write_text("{}")
    if missing is None:
        names = {info.name for info in locate_in(tmp_path, snapshot).tokenizer.objects}
        assert {"vocab.json", "merges.txt", "added_tokens.json"} <= names
    else:
        with pytest.raises(MissingFile, match="TOKENIZER_URI"):
            locate_in(tmp_path, snapshot)


def test_configuration_and_tokenizer_may_lie_elsewhere(tmp_path, snapshot):
    for name in ("config.json", "tokenizer.json"):
        (snapshot / name).unlink()
    located = locate_in(tmp_path, snapshot, model_config_uri=str(DEMO / "config.json"), tokenizer_uri=str(DEMO))
    assert located.hub_config["model_type"] == "llama"
    assert located.tokenizer.source.uri == str(DEMO)


def test_an_index_that_names_a_file_that_is_not_there_is_refused(tmp_path, snapshot):
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-2.safetensors"}}))
    (snapshot / "model.safetensors").rename(snapshot / "model-1.safetensors")
    with pytest.raises(MissingFile, match=r"names 'model-2.safetensors', which is not there"):
        locate_in(tmp_path, snapshot)


def test_an_index_chooses_among_the_files_that_lie_there(tmp_path, snapshot):
    shutil.copy(snapshot / "model.safetensors", snapshot / "consolidated.safetensors")
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    names = {info.name for info in locate_in(tmp_path, snapshot).weights.objects}
    assert "model.safetensors" in names
    assert "consolidated.safetensors" not in names


def test_without_an_index_the_standard_name_wins_over_others(tmp_path, snapshot):
    shutil.copy(snapshot / "model.safetensors", snapshot / "consolidated.safetensors")
    names = {info.name for info in locate_in(tmp_path, snapshot).weights.objects}
    assert "consolidated.safetensors" not in names


@pytest.mark.parametrize("content", ["{", "[]", "nul"])
def test_a_configuration_that_is_no_json_object_is_refused(tmp_path, snapshot, content):
    (snapshot / "config.json").write_text(content)
    with pytest.raises(MalformedCheckpoint, match=r"config.json: is not (a )?JSON"):
        locate_in(tmp_path, snapshot)


def test_a_levanter_run_finds_configuration_and_tokenizer_above_its_steps(tmp_path):
    run = tmp_path / "run"
    make_run(run)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(DEMO / name, run / name)
    for uri in (run, run / "step-3"):
        located = locate_in(tmp_path, uri)
        assert located.hub_config["model_type"] == "llama"
        assert (located.tokenizer.folder, located.weights.folder == "step-3/") == ("", uri == run)
        assert "tokenizer.json" in {info.name for info in located.tokenizer.objects}


def test_a_levanter_yaml_stands_for_the_configuration(tmp_path):
    run = tmp_path / "run"
    make_run(run)
    shutil.copy(DEMO / "tokenizer.json", run / "tokenizer.json")
    model = {"type": "qwen3", "hidden_dim": 32, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2}
    (run / "train.yaml").write_text(json.dumps({"model": model, "trainer": {"seed": 0}}))
    config = locate_in(tmp_path, run).hub_config
    assert (config["model_type"], config["vocab_size"], config["levanter"]["num_layers"]) == ("qwen3", 96, 3)


def test_a_run_is_what_levanter_computes_and_the_log_says_where_its_export_differs(tmp_path, caplog):
    run = tmp_path / "run"
    make_run(run)
    shutil.copy(DEMO / "tokenizer.json", run / "tokenizer.json")
    (run / "train.yaml").write_text("model: {type: mistral, sliding_window: 8, num_heads: 32, num_kv_heads: 8}")
    config = read_config("m", locate_in(tmp_path, run).hub_config)
    assert config.heads.window is None
    [record] = [record for record in caplog.records if hasattr(record, "differences")]
    assert "as Levanter computes it, which is how it was trained" in record.message
    assert record.differences["layers.attention.window"] == "None and not 8"


@pytest.mark.parametrize(("kind", "reason"), [("gpt2_hyena", "convolutions"), ("unheard_of", "served are apertus, ")])
def test_a_run_of_a_type_that_is_not_served_is_refused_with_the_reason(tmp_path, kind, reason):
    run = tmp_path / "run"
    make_run(run)
    (run / "train.yaml").write_text(f"model: {{type: {kind}}}")
    with pytest.raises(UnsupportedModel, match=rf"train.yaml: model.type = '{kind}' is not served: .*{reason}"):
        locate_in(tmp_path, run)


def test_two_yaml_files_are_ambiguous(tmp_path):
    run = tmp_path / "run"
    make_run(run)
    for name in ("a.yaml", "b.yaml"):
        (run / name).write_text("model: {type: llama}")
    with pytest.raises(AmbiguousCheckpoint, match=r"a.yaml, b.yaml\). Set MODEL_CONFIG_URI"):
        locate_in(tmp_path, run)


def test_a_yaml_that_levanter_refuses_says_so(tmp_path):
    run = tmp_path / "run"
    make_run(run)
    (run / "train.yaml").write_text("model: {type: llama, hidden_dimension: 3}")
    with pytest.raises(CheckpointError, match=r"train.yaml: Levanter refuses it.*hidden_dimension"):
        locate_in(tmp_path, run)


def test_a_levanter_run_without_a_configuration_names_the_setting(tmp_path):
    make_run(tmp_path / "run")
    with pytest.raises(MissingFile, match=r"config.json is missing.*Levanter YAML beside the step.*MODEL_CONFIG_URI"):
        locate_in(tmp_path, tmp_path / "run")
