"""Forms with one file: what they hold, and forms that are none."""

import pytest

from service.api.http.form import MAX_FIELDS, scalar
from tests.api.hearing.scripted_speech import MODEL, SECOND, SpeechService

pytestmark = pytest.mark.anyio

PATH = "/v1/audio/transcriptions"
TYPE = {"content-type": "multipart/form-data; boundary=x"}
MODEL_PART = f'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n{MODEL}\r\n'.encode()
END = b"--x--\r\n"


def file_part(head=b'name="file"; filename="a.wav"', content=SECOND):
    return b"--x\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + content + b"\r\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("true", True), ("False", False), ("null", None), ("1", 1), ("-0.5", -0.5), ('{"a": 1}', {"a": 1})),
        *(("NaN", "NaN"), ("1 2", "1 2"), ("{", "{"), ("", ""), ("[]", []), ("[", "["), ("text", "text")),
    ],
)
def test_words_and_numbers_are_what_json_takes_them_for(text, value):
    assert scalar(text) == value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "file"),
        (b"no form", None),
        (MODEL_PART + END, "file"),
        (MODEL_PART + b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\ntext\r\n' + END, "file"),
        (MODEL_PART + file_part() + file_part() + END, None),
        (MODEL_PART + file_part(b'filename="a.wav"') + END, None),
        (MODEL_PART + file_part(b'name="other"; filename="a.wav"') + END, "other"),
        (MODEL_PART + MODEL_PART + file_part() + END, "model"),
        (MODEL_PART * (MAX_FIELDS + 1) + file_part() + END, None),
        (MODEL_PART + file_part(b'name="file"; filename="' + b"n" * 65536 + b'"') + END, None),
        (MODEL_PART + file_part(b'name="file"; filename="a"\r\n' + b"a: b\r\n" * 20) + END, None),
        (MODEL_PART + b"--x\r\n" + b"a" * 200_000, None),
        (MODEL_PART + file_part(content=b"a" * 100_000)[:-4], "file"),
    ],
    ids=range(13),
)
async def test_what_is_no_form_with_one_file_is_refused(body, param):
    service = SpeechService()
    async with service.client() as client:
        answer = await client.post(PATH, content=body, headers=TYPE)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
        json_body = await client.post(PATH, json={"model": MODEL})
        assert json_body.status_code == 415
    assert (await service.hear()).status_code == 200


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "a\x00b", "é" * 100])
async def test_a_file_may_have_any_name_and_nothing_is_written(name, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    big = SECOND + bytes(3 * 2**20)
    answer = await SpeechService().hear(content=big, name=name or "x")
    assert answer.status_code == 200, answer.text
    assert list(tmp_path.iterdir()) == []


async def test_a_recording_over_the_limit_is_a_413():
    service = SpeechService(max_audio_bytes=2**16)
    answer = await service.hear(content=bytes(2**18))
    assert answer.status_code == 413
