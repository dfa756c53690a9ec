"""The location of responses that are kept, by the settings."""

from pathlib import Path

import pytest

from service.errors import SettingsError
from service.server.assembly import open_responses
from service.settings import Settings


def uri_of(**settings):
    responses = open_responses(Settings(local_model_cache=Path("/cache"), **settings))
    return None if responses is None else responses.uri


def test_they_lie_in_the_cache_unless_a_place_is_named():
    assert uri_of() == "/cache/responses"
    assert uri_of(state_uri="/data/responses") == "/data/responses"
    assert uri_of(state_uri="gs://bucket/state", storage_emulator_host="127.0.0.1:1") == "gs://bucket/state"


def test_where_files_are_memory_none_are_kept_unless_a_place_is_named():
    assert uri_of(model_stream=True) is None
    assert uri_of(model_stream=True, state_uri="/data") == "/data"
    assert uri_of(state_uri="off") is None


def test_a_place_that_cannot_be_written_is_refused_by_its_setting():
    with pytest.raises(SettingsError, match="STATE_URI"):
        uri_of(state_uri="hf://org/name")
