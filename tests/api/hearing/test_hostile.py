"""Files of unfriendly clients through the routes: odd sounds, references to other files, and thousands of mutations."""

import random
import struct

import numpy as np
import pytest

from tests.api.hearing.scripted_speech import SECOND, SpeechService
from tests.media.audio_files import ENCODERS, audio_file, tone

pytestmark = pytest.mark.anyio

NUM_MUTATED = 2000
ELSEWHERE = b"file:///etc/passwd\0"


def boxed(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + kind + content


def with_reference_elsewhere() -> bytes:
    """Return an m4a whose samples are said to be in another file."""
    whole = audio_file("m4a", tone(1))
    here = boxed(b"dref", bytes(7) + b"\x01" + boxed(b"url ", b"\0\0\0\x01"))
    assert here in whole
    there = boxed(b"dref", bytes(7) + b"\x01" + boxed(b"url ", bytes(4) + ELSEWHERE))
    return whole.replace(here, there)


@pytest.mark.parametrize("samples", [1, 100, 170, 3000])
async def test_the_shortest_sounds_are_heard(samples):
    answer = await SpeechService().hear(content=audio_file("wav", np.full(samples, 3000, np.int16)))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("level", [0, 12_000])
async def test_silence_and_a_constant_are_heard(level):
    answer = await SpeechService().hear(content=audio_file("wav", np.full(16000, level, np.int16)), vad_filter=True)
    assert answer.json()["text"] == ""


async def test_a_reference_to_another_file_opens_none():
    answer = await SpeechService().hear(content=with_reference_elsewhere())
    assert answer.status_code in (200, 400)
    assert "root:" not in answer.text
    assert "passwd" not in answer.text


@pytest.mark.slow
async def test_more_than_two_hours_are_refused_while_they_are_decoded():
    answer = await SpeechService().hear(content=audio_file("flac", np.zeros(8000 * 7300, np.int16), 8000))
    assert answer.status_code == 413, answer.text
    assert answer.json()["error"]["param"] == "file"
    assert "7200 seconds" in answer.json()["error"]["message"]


@pytest.mark.slow
async def test_no_mutated_file_is_a_fault_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    service, chance = SpeechService(), random.Random(37)
    files = [audio_file(kind, tone(1 + number)) for number, kind in enumerate(ENCODERS)]
    for number in range(NUM_MUTATED):
        content = bytearray(files[number % len(files)])
        for _ in range(chance.randrange(1, 40)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        answer = await service.hear(content=bytes(content))
        assert answer.status_code in (200, 400), answer.text
    assert (await service.hear(content=SECOND)).status_code == 200
    assert list(tmp_path.iterdir()) == []
