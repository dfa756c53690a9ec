"""The sources of settings, and the message for each wrong one."""

import os
import traceback
from pathlib import Path

import pytest

from service.errors import SettingsError
from service.settings import Settings
from service.settings.sources import load_settings


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without files, and no variable that names a setting."""
    monkeypatch.chdir(tmp_path)
    for name in {name.upper() for name in Settings.model_fields} & os.environ.keys():
        monkeypatch.delenv(name)
    return tmp_path


def config(text: str) -> Path:
    path = Path("config.yaml")
    path.write_text(text)
    return path


def test_a_model_may_have_several_names():
    settings = Settings(model_name=" org/a, b ,,b", gcs_bucket="bucket")
    assert settings.model_names == ("org/a", "b")
    assert settings.checkpoint_uri == "gs://bucket/org-a"
    assert Settings(model_name=",").model_names == ()


def test_a_bucket_is_the_place_of_one_model_or_a_catalogue():
    assert not Settings(model_name="a", gcs_bucket="bucket", gcs_model_prefix="/models/").has_catalogue
    catalogue = Settings(model_name=" , ", gcs_bucket="bucket", gcs_model_prefix="/models/", models="a, b,a")
    assert catalogue.has_catalogue
    assert (catalogue.catalogue_address, catalogue.selected_models) == ("gs://bucket/models", ("a", "b"))
    assert Settings(catalogue_uri="/models").catalogue_address == "/models"
    assert Settings(models_config="models.yaml").catalogue_address is None
    assert not Settings().has_catalogue


def test_who_speaks_first_in_the_order_wins(monkeypatch: pytest.MonkeyPatch):
    path = config("host: yaml\nlog_format: json\nport: 1\nmax_num_seqs: 5\n")
    Path(".env").write_text("HOST=lines\nPORT=2\nexport MAX_NUM_SEQS=6\n")
    monkeypatch.setenv("HOST", "environment")
    monkeypatch.setenv("PORT", "3")
    settings = load_settings({"host": "flag"}, path)
    assert (settings.host, settings.port, settings.max_num_seqs, settings.log_format) == ("flag", 3, 6, "json")


def test_what_is_empty_is_not_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PORT", "")
    Path(".env").write_text("PORT=\n")
    assert load_settings({}, config("")).port == 8080


def test_a_variable_may_be_written_small_and_capitals_win(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("model_name", "small")
    monkeypatch.setenv("port", "1")
    monkeypatch.setenv("PORT", "2")
    settings = load_settings({})
    assert (settings.model_name, settings.port) == ("small", 2)


def test_values_are_read_as_their_types(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MODEL_STREAM", "true")
    monkeypatch.setenv("DRAIN_SECONDS", "2.5")
    monkeypatch.setenv("API_KEY", "one, two,")
    settings = load_settings({})
    assert (settings.model_stream, settings.drain_seconds, settings.api_keys) == (True, 2.5, ("one", "two"))
    assert "two" not in repr(settings)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PORT", "many", r"PORT: .*integer.*\(it is 'many'\)\."),
        ("DTYPE", "int4", "DTYPE: .*'auto'"),
        ("MODEL_URL", "gs://b/m", "MODEL_URL: is not a setting of Levserve. Did you mean MODEL_URI?"),
        ("GCS_MODEL_PREFIX", "models", "GCS_MODEL_PREFIX: needs GCS_BUCKET."),
        ("MODELS", "a", "MODELS: needs a catalogue"),
    ],
)
def test_a_variable_that_is_wrong_is_named(variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=message):
        load_settings({})


@pytest.mark.parametrize("name", ["api_key", "admin_api_key", "bundle_signing_key"])
def test_a_key_is_not_told(name):
    with pytest.raises(SettingsError) as raised:
        load_settings({name: ["secret"]})
    assert "secret" not in str(raised.value)


def test_bundles_beside_checkpoints_need_a_signing_key_of_some_length():
    key = "k" * 32
    settings = load_settings({"bundle_uri": "sibling", "bundle_signing_key": f"{key}, {key}2"})
    assert settings.bundle_signing_keys == (key, f"{key}2")
    with pytest.raises(SettingsError, match=r"BUNDLE_URI: 'sibling' .* needs BUNDLE_SIGNING_KEY"):
        load_settings({"bundle_uri": "sibling"})
    with pytest.raises(SettingsError, match="BUNDLE_SIGNING_KEY: has a key of fewer than 32 characters") as raised:
        load_settings({"bundle_signing_key": f"{key}, {key[1:]}"})
    assert key[1:] not in str(raised.value)


def test_a_line_that_is_spelled_almost_like_a_setting_is_refused():
    Path(".env").write_text("MAX_NUM_SEQ=4\n")
    with pytest.raises(SettingsError, match=r"MAX_NUM_SEQ: is not a setting of Levserve\. Did you mean MAX_NUM_SEQS\?"):
        load_settings({})


def test_lines_of_other_programs_are_named_and_left_without_their_values():
    Path(".env").write_text("OPENAI_API_KEY=canary\nPORT=7\nDATABASE_URL=canary\nDEBUG=1\n")
    notes = []
    assert load_settings({}, note=notes.append).port == 7
    assert notes == [".env: not settings of Levserve, and left alone: OPENAI_API_KEY, DATABASE_URL, DEBUG."]


def test_a_prefix_makes_a_variable_or_a_line_this_programs_own(monkeypatch: pytest.MonkeyPatch):
    Path(".env").write_text("LEVSERVE_DTYPE=float32\nDTYPE=int4\nLEVSERVE_MAX_NUM_SEQS=3\n")
    monkeypatch.setenv("HOST", "x86_64-conda-linux-gnu")
    monkeypatch.setenv("LEVSERVE_HOST", "127.0.0.1")
    monkeypatch.setenv("LEVSERVE_PORT", "tcp://10.0.0.1:8080")  # Kubernetes, for a Service of this name
    monkeypatch.setenv("LEVSERVE_SERVICE_HOST", "10.0.0.1")
    settings = load_settings({})
    assert (settings.host, settings.dtype, settings.port, settings.max_num_seqs) == ("127.0.0.1", "float32", 8080, 3)
    assert settings.source_of("host") == "LEVSERVE_HOST in the environment"
    monkeypatch.setenv("LEVSERVE_MAX_NUM_SEQ", "4")
    with pytest.raises(SettingsError, match=r"LEVSERVE_MAX_NUM_SEQ: is not a setting .* Did you mean MAX_NUM_SEQS"):
        load_settings({})


def test_the_source_of_what_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DTYPE", "int4")
    with pytest.raises(SettingsError, match=r"DTYPE: .*'int4'.* Set by DTYPE in the environment\. A variable with the"):
        load_settings({})
    monkeypatch.delenv("DTYPE")
    monkeypatch.setenv("GCS_BUCKET", "bucket")
    with pytest.raises(
        SettingsError, match=r"MODEL_URI: contradicts GCS_BUCKET; .* Set by GCS_BUCKET in the environment"
    ):
        load_settings({"model_uri": "/model"})
    with pytest.raises(SettingsError, match=r"^--gpu-memory-utilization: Input should be less than or equal to 1"):
        load_settings({"device_memory_fraction": "90"}, typed={"device_memory_fraction": "--gpu-memory-utilization"})


def test_choices_and_keys_of_a_file_may_be_written_in_any_case(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOG_LEVEL", "debug")
    settings = load_settings({"dtype": "BFloat16"}, config("PORT: 9\nmax-num-seqs: 2\n"))
    assert (settings.log_level, settings.dtype, settings.port, settings.max_num_seqs) == ("DEBUG", "bfloat16", 9, 2)


def test_a_name_of_the_hub_is_the_hubs_unless_a_folder_has_it():
    notes = []
    settings = load_settings({"model_uri": "org/model", "tokenizer_uri": "org/a@main"}, note=notes.append)
    assert (settings.model_uri, settings.tokenizer_uri) == ("hf://org/model", "hf://org/a@main")
    assert len(notes) == 2
    Path("org/model").mkdir(parents=True)
    assert load_settings({"model_uri": "org/model"}).model_uri == "org/model"
    for path in ("./org/model", "/org/model", "~/org", "gs://org/model", "a/b/c", "model"):
        assert load_settings({"model_uri": path}).model_uri == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", "PROT: is not a setting of Levserve. Did you mean PORT?"),
        ("1: 2", "1: is not a setting of Levserve."),
        ("- port", "should contain settings by name"),
        ("port: [", "is not valid YAML at line 1, column 8"),
    ],
)
def test_a_file_that_is_wrong_is_refused(text: str, message: str):
    with pytest.raises(SettingsError, match=message):
        load_settings({}, config(text))


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(SettingsError, match=r"--config: there is no file none\.yaml\."):
        load_settings({}, Path("none.yaml"))


@pytest.mark.parametrize("name", ["API_KEY", "ADMIN_API_KEY", "BUNDLE_SIGNING_KEY"])
@pytest.mark.parametrize("blank", [" ", ",", " , ,", "\n"])
def test_a_blank_key_does_not_open_the_service(name, blank, monkeypatch):
    monkeypatch.setenv(name, blank)
    with pytest.raises(SettingsError, match=f"{name}: is blank"):
        load_settings({})


@pytest.mark.parametrize("text", ["port: 1\napi_key: 'canary-7f3a", "api_key: *canary-7f3a", "api_key: !canary-7f3a x"])
def test_what_is_no_yaml_is_placed_and_not_quoted(text):
    with pytest.raises(SettingsError, match=r"config.yaml is not valid YAML at line \d, column \d+\.") as refusal:
        load_settings({}, config(text))
    assert "canary" not in "".join(traceback.format_exception(refusal.value))


def test_an_adapter_is_merged_into_a_single_model():
    assert Settings(model_uri="/model", adapter_uri="/adapter").adapter_uri == "/adapter"
    with pytest.raises(SettingsError, match=r"ADAPTER_URI: .* In MODELS_CONFIG, give a model an 'adapter'"):
        Settings(catalogue_uri="/models", adapter_uri="/adapter")
