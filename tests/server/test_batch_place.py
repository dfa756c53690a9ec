"""The location of files and batches, by the settings."""

from pathlib import Path

import pytest

from service.errors import SettingsError
from service.server.assembly import open_batches
from service.settings import Settings


def uri_of(**settings):
    batches = open_batches(Settings(local_model_cache=Path("/cache"), **settings))
    return None if batches is None else batches.store.uri


def test_they_lie_in_the_cache_unless_a_place_is_named():
    assert uri_of() == "/cache/batches"
    assert uri_of(batch_uri="/data/batches") == "/data/batches"
    assert uri_of(batch_uri="gs://bucket/batches", storage_emulator_host="127.0.0.1:1") == "gs://bucket/batches"


def test_where_files_are_memory_there_are_none_unless_a_place_is_named():
    assert uri_of(model_stream=True) is None
    assert uri_of(model_stream=True, batch_uri="/data") == "/data"
    assert uri_of(batch_uri="off") is None


def test_a_place_that_cannot_be_written_is_refused_by_its_setting():
    with pytest.raises(SettingsError, match="BATCH_URI"):
        uri_of(batch_uri="hf://org/name")
