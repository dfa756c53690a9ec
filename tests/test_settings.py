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


def test_a_line_that_is_no_setting_is_refused():
    Path(".env").write_text("MAX_NUM_SEQ=4\n")
    with pytest.raises(SettingsError, match=r"MAX_NUM_SEQ: is not a setting of Levserve\. Did you mean MAX_NUM_SEQS\?"):
        load_settings({})


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
