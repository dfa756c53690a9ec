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
        ("https://example.com/org/name", "'https://' is not supported"),
        ("https://huggingface.co/org/name", r"Did you mean hf://org/name\?"),
        ("https://huggingface.co/org/name/tree/v1", r"Did you mean hf://org/name@v1\?"),
        ("https://hf.co/org/name/blob/main/model.safetensors?x=1", r"Did you mean hf://org/name@main\?"),
        ("hf://", "does not name a repository"),
        ("hf://org/name@", "does not name a repository"),
        ("hf://org/name/../file", "does not name a repository"),
        ("hf://org/name/tree/main", "does not name a repository"),
        ("hf://org/name/.git", "does not name a repository"),
        ("hf://../name", "does not name a repository"),
        ("hf://org/name@../../x", "does not name a repository"),
        ("file://server/share", "names another machine"),
    ],
)
def test_a_malformed_address_is_refused_under_its_settings_name(text: str, reason: str):
    with pytest.raises(SettingsError, match=reason) as caught:
        parse_location(text, "TOKENIZER_URI")
    assert caught.value.variable == "TOKENIZER_URI"
    assert repr(text) in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_a_location_or_a_clear_error(text: str):
    for uri in (text, f"gs://{text}", f"hf://{text}", f"file://{text}"):
        try:
            location = parse_location(uri)
        except SettingsError:
            continue
        if not isinstance(location, LocalLocation):
            assert parse_location(location.uri) == location


@pytest.mark.parametrize("bucket", ["abc", "a" * 222, "1.2", "a_b", "a-9"])
def test_a_bucket_has_three_to_222_characters(bucket: str):
    assert parse_location(f"gs://{bucket}/x") == GcsLocation(bucket, "x")


@pytest.mark.parametrize("bucket", ["ab", "a" * 223, "-ab", "ab-", ".ab", "ab.", "a b", "ABC"])
def test_any_other_bucket_is_refused(bucket: str):
    with pytest.raises(SettingsError, match="cannot be the name of a bucket"):
        parse_location(f"gs://{bucket}/x")


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        (GcsLocation("bucket", "a/b"), "gs://bucket/a/b"),
        (GcsLocation("bucket", ""), "gs://bucket"),
        (HubLocation("org/name"), "hf://org/name"),
        (HubLocation("org/name", "main"), "hf://org/name@main"),
        (HubLocation("9.org/n-a_m.e", "V1.0/x"), "hf://9.org/n-a_m.e@V1.0/x"),
        (LocalLocation(Path("/models/a")), "/models/a"),
    ],
)
def test_an_address_is_written_as_it_is_read(location, uri: str):
    assert location.uri == uri
    assert parse_location(uri) == location
    assert parse_location(uri.replace("hf:", "HF:").replace("gs:", "Gs:")) == location


@pytest.mark.parametrize("uri", ["hf://org/name/", "hf:///org/name", "hf://org/name@main/"])
def test_slashes_around_a_repository_mean_nothing(uri: str):
    assert parse_location(uri).uri == uri.rstrip("/").replace(":///", "://")


def test_a_file_address_is_a_path():
    assert parse_location("file:///a%20b/c") == LocalLocation(Path("/a b/c"))
    assert parse_location("FILE:///a") == LocalLocation(Path("/a"))


@pytest.mark.parametrize("uri", ["", "gs://", "gs:/a", "hf://", "s3://a", "file://a/b", "\0"])
def test_the_setting_is_named_even_if_nothing_is_said_about_it(uri: str):
    with pytest.raises(SettingsError) as caught:
        parse_location(uri)
    assert caught.value.variable == "MODEL_URI"


def test_a_user_without_a_home_is_told_to_write_an_absolute_path():
    with pytest.raises(SettingsError, match="no home folder") as caught:
        parse_location("~no-such-user/model", "TOKENIZER_URI")
    assert caught.value.variable == "TOKENIZER_URI"
