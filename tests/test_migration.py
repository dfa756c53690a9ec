"""The variables of the earlier services: what docs/migrate.md says of each, and what the switches among them do."""

import os
import re
from pathlib import Path

import pytest

from service.errors import SettingsError
from service.settings import Settings
from service.settings.sources import export_hub_token, load_settings
from tests.test_settings import empty_folder

__all__ = ["empty_folder"]  # a fixture of every test here, too

PAGE = (Path(__file__).parents[1] / "docs/migrate.md").read_text()
ROWS = re.findall(r"^\| `(\w+)=(.*?)` \| `(\w+)=(.*?)` \|", PAGE, re.MULTILINE)
# What the earlier services had, by their documentation.
KEPT = {
    "LOCAL_DEV", "AUTO_DOWNLOAD_MODELS", "HF_TOKEN", "ENABLE_METRICS", "MODEL_URI", "MODEL_NAME", "TOKENIZER_URI",
    "GCS_BUCKET", "GCS_MODEL_PREFIX", "LOCAL_MODEL_CACHE", "MAX_CACHED_MODELS", "MAX_CONCURRENT_REQUESTS",
    "REQUEST_TIMEOUT", "DEFAULT_MAX_TOKENS", "DEFAULT_TEMPERATURE", "DTYPE", "API_KEY", "ADMIN_API_KEY",
    "DRAIN_SECONDS", "HOST", "PORT", "LOG_LEVEL", "STORAGE_EMULATOR_HOST", "MAX_AUDIO_BYTES",
    "ALLOW_REMOTE_IMAGES", "REMOTE_IMAGE_TIMEOUT", "MAX_REMOTE_IMAGE_BYTES",
}  # fmt: skip
NEEDED = {"GCS_MODEL_PREFIX": {"gcs_bucket": "bucket"}}  # what a variable makes no sense without


def test_every_row_of_the_table_is_read():
    assert len(ROWS) == PAGE.partition("<!-- /variables -->")[0].count("\n| `")
    assert {earlier for earlier, *_ in ROWS} == KEPT


@pytest.mark.parametrize(("earlier", "given", "ours", "value"), ROWS, ids=[row[0] for row in ROWS])
def test_a_variable_of_the_table_means_what_the_table_says(earlier, given, ours, value, monkeypatch):
    name, needed = ours.lower(), NEEDED.get(ours, {})
    monkeypatch.setenv(earlier, given)
    of_earlier = load_settings(needed)
    monkeypatch.delenv(earlier)
    assert getattr(of_earlier, name) == getattr(load_settings({name: value, **needed}), name)
    assert name in of_earlier.model_fields_set


def test_a_variable_that_is_no_setting_is_left_alone_and_that_of_a_file_is_named(monkeypatch):
    monkeypatch.setenv("WORKERS_OF_ANOTHER_PROGRAM", "4")
    load_settings({})
    Path(".env").write_text("WORKERS_OF_ANOTHER_PROGRAM=4\n")
    notes = []
    load_settings({}, note=notes.append)
    assert "WORKERS_OF_ANOTHER_PROGRAM" in notes[0]


def test_a_developers_machine_has_its_own_defaults():
    settings = load_settings({"local_dev": "true"})
    assert (settings.host, settings.log_format, settings.max_num_seqs) == ("127.0.0.1", "text", 1)
    assert not settings.has_catalogue  # there is no folder of models here
    Path("models").mkdir()
    assert load_settings({"local_dev": "true"}).catalogue_address == "models"
    assert not load_settings({"local_dev": "false"}).has_catalogue
    assert load_settings({"local_dev": "0"}).host == "0.0.0.0"


@pytest.mark.parametrize(
    "named", [{"model_uri": "/a"}, {"gcs_bucket": "bucket"}, {"models_config": "a.yaml"}, {"catalogue_uri": "/other"}]
)
def test_what_is_set_otherwise_wins_on_a_developers_machine(named):
    Path("models").mkdir()
    given = {"local_dev": "true", "host": "0.0.0.0", "log_format": "json", "max_num_seqs": "3", **named}
    settings = load_settings(given)
    assert (settings.host, settings.log_format, settings.max_num_seqs) == ("0.0.0.0", "json", 3)
    assert settings.catalogue_uri == named.get("catalogue_uri")


def test_a_switch_that_is_neither_true_nor_false_is_refused():
    with pytest.raises(SettingsError, match=r"--local-dev: .*\(it is 'maybe'\)"):
        load_settings({"local_dev": "maybe"})


def test_checkpoints_that_are_neither_kept_nor_fetched_are_refused():
    with pytest.raises(SettingsError, match="AUTO_DOWNLOAD_MODELS: is false, but MODEL_STREAM keeps no files"):
        Settings(auto_download_models=False, model_stream=True)


def test_the_hub_gets_its_token_from_any_source(monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    export_hub_token(load_settings({}))
    assert "HF_TOKEN" not in os.environ
    monkeypatch.setenv("HF_TOKEN", "of the environment")
    Path(".env").write_text("HF_TOKEN=of_the_file\n")
    monkeypatch.delenv("HF_TOKEN")
    settings = load_settings({})
    assert "of_the_file" not in repr(settings)
    monkeypatch.setenv("HF_TOKEN", "")
    export_hub_token(settings)
    assert os.environ["HF_TOKEN"] == "of_the_file"
