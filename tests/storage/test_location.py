"""Addresses of checkpoints are parsed, or refused with a message that names the setting."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import SettingsError
from service.storage.location import GcsLocation, HubLocation, LocalLocation, parse_location


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("gs://bucket/a/b", GcsLocation("bucket", "a/b")),
        ("gs://bucket/a/b/", GcsLocation("bucket", "a/b")),
        ("gs://my.bucket_1-x", GcsLocation("my.bucket_1-x", "")),
        ("GS://bucket/A b/ü", GcsLocation("bucket", "A b/ü")),
        ("hf://org/name", HubLocation("org/name")),
        ("hf://org/name@refs/pr/1", HubLocation("org/name", "refs/pr/1")),
        ("hf://gpt2", HubLocation("gpt2")),
        ("/models/a", LocalLocation(Path("/models/a"))),
        ("file:///models/a%20b", LocalLocation(Path("/models/a b"))),
        (" /models/a\n", LocalLocation(Path("/models/a"))),
    ],
)
def test_an_address_is_understood(text: str, location: object):
    assert parse_location(text) == location


def test_relative_and_home_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_location("org/name") == LocalLocation(tmp_path / "org/name")
    assert parse_location("~/model") == LocalLocation(Path("/home/someone/model"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not an address"),
        ("a\0b", "is not an address"),
        ("gs://", "the bucket is missing"),
        ("gs:///prefix", "the bucket is missing"),
        ("gs://Bucket/x", "cannot be the name of a bucket"),
        ("gs:/bucket/x", "has one slash"),
        ("s3://bucket/x", r"'s3://' is not supported. Write gs://bucket/prefix, hf://"),
        ("https://huggingface.co/org/name", "'https://' is not supported"),
        ("hf://", "does not name a repository"),
        ("hf://org/name@", "does not name a repository"),
        ("hf://org/name/file", "does not name a repository"),
        ("hf://../name", "does not name a repository"),
        ("hf://org/name@../../x", "does not name a repository"),
        ("file://server/share", "names another machine"),
    ],
)
def test_a_malformed_address_is_refused_under_its_settings_name(text: str, reason: str):
    with pytest.raises(SettingsError, match=reason) as caught:
        parse_location(text, "TOKENIZER_URI")
    assert caught.value.variable == "TOKENIZER_URI"


@given(st.text(max_size=40))
def test_any_text_is_a_location_or_a_clear_error(text: str):
    for uri in (text, f"gs://{text}", f"hf://{text}", f"file://{text}"):
        try:
            location = parse_location(uri)
        except SettingsError:
            continue
        if not isinstance(location, LocalLocation):
            assert parse_location(location.uri) == location
