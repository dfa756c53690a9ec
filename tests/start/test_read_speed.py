"""The speed of memory is measured once for a machine; what is damaged or of another one is measured anew."""

import json
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import pytest

from service.device.native.library import NativeCode, native_code
from service.device.read_speed import measure_read_speed
from service.settings import Settings
from service.start.read_speed import FILE, read_speed

pytestmark = pytest.mark.skipif(native_code() is NativeCode.NONE, reason="there is no native code")

measure = partial(measure_read_speed, (jnp.ones(10_000, jnp.float32),))
KEPT = 123.0  # bytes a second, which no machine is as slow as


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(local_model_cache=tmp_path / "not there yet")


def kept_path(settings: Settings) -> Path:
    return settings.local_model_cache / FILE


def test_a_second_start_reads_what_the_first_measured(settings: Settings):
    measured = read_speed(settings, measure)
    assert measured > KEPT
    assert read_speed(settings, measure) == read_speed(settings, lambda: None) == measured
    assert [path.name for path in settings.local_model_cache.iterdir()] == [FILE]


DAMAGES = {
    "empty": b"",
    "cut": b'{"machine": "',
    "not text": b"\xff\xfe\x00",
    "no object": b"[1]",
    "no speed": b'{"machine": "%s"}',
    "no number": b'{"machine": "%s", "bytes_per_s": "fast"}',
    "zero": b'{"machine": "%s", "bytes_per_s": 0.0}',
    "negative": b'{"machine": "%s", "bytes_per_s": -1.0}',
    "infinite": b'{"machine": "%s", "bytes_per_s": Infinity}',
    "not a number": b'{"machine": "%s", "bytes_per_s": NaN}',
    "of another machine": b'{"machine": "PDP-11, 1 cores, 65,536 bytes", "bytes_per_s": 123.0}',
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_or_of_another_machine_is_measured_anew(settings: Settings, damage: str):
    read_speed(settings, measure)
    path = kept_path(settings)
    machine = json.loads(path.read_bytes())["machine"].encode()
    path.write_bytes(DAMAGES[damage].replace(b"%s", machine))
    measured = read_speed(settings, measure)
    assert measured > KEPT
    assert json.loads(path.read_bytes()) == {"machine": machine.decode(), "bytes_per_s": measured}


def test_what_is_kept_for_this_machine_holds(settings: Settings):
    read_speed(settings, measure)
    path = kept_path(settings)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"bytes_per_s": KEPT}))
    assert read_speed(settings, measure) == KEPT


def test_where_nothing_can_be_kept_every_start_measures(tmp_path: Path):
    (tmp_path / "file").touch()
    assert read_speed(Settings(local_model_cache=tmp_path / "file"), measure) > KEPT


def test_where_the_disk_may_be_memory_nothing_is_kept(tmp_path: Path):
    assert read_speed(Settings(local_model_cache=tmp_path, model_stream=True, model_uri="gs://bucket/model"), measure)
    assert not list(tmp_path.iterdir())
