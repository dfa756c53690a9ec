"""Forms as browsers, PHP, qs and typed clients write them, prompts of any length, and times within the recording."""

import json

import pytest

from tests.api.hearing.scripted_speech import MODEL, SECOND, SpeechService
from tests.media.audio_files import audio_file, tone

pytestmark = pytest.mark.anyio

LISTS = {
    "repeated": {"timestamp_granularities": ["word", "segment"]},
    "PHP's": {"timestamp_granularities[]": ["word", "segment"]},
    "qs'": {"timestamp_granularities[0]": "word", "timestamp_granularities[1]": "segment"},
    "qs' in another order": {"timestamp_granularities[10]": "segment", "timestamp_granularities[2]": "word"},
    "JSON's": {"timestamp_granularities": '["word", "segment"]'},
    "JSON's in PHP's": {"timestamp_granularities[]": '["word", "segment"]'},
}


@pytest.mark.parametrize("fields", LISTS.values(), ids=list(LISTS))
async def test_lists_have_the_shapes_of_every_client(fields):
    service = SpeechService(((0, "Hello", " world", 50), -0.2, 0.01))
    answer = await service.hear(response_format="verbose_json", **fields)
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() >= {"words", "segments"}


@pytest.mark.parametrize("shape", ["{}", "{}[]", "{}[0]"])
async def test_lists_of_hints_and_of_refused_fields_have_them_too(shape):
    told = await SpeechService().hear(**{shape.format("languages"): "en", shape.format("keywords"): "fox"})
    assert (told.status_code, told.headers["x-levserve-ignored"]) == (200, "languages, keywords")
    for name, value in (("include", "logprobs"), ("include", '["logprobs"]'), ("known_speaker_names", "me")):
        answer = await SpeechService().hear(**{shape.format(name): value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert (await SpeechService().hear(**{shape.format(name): "[]"})).status_code == 200


async def test_a_number_of_an_entry_that_is_there_twice_is_refused():
    answer = await SpeechService().hear(**{"timestamp_granularities[0]": ["word", "segment"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timestamp_granularities[0]")


EMPTY = ["", " ", "\n"]


@pytest.mark.parametrize("empty", EMPTY, ids=json.dumps)
async def test_values_that_are_empty_are_absent(empty):
    names = (
        *("language", "prompt", "response_format", "temperature", "timestamp_granularities[]", "stream", "seed"),
        *("chunking_strategy", "chunking_strategy[type]", "vad_filter", "hotwords", "include[]", "n", "unknown"),
    )
    service = SpeechService()
    answer = await service.hear(**dict.fromkeys(names, empty))
    assert (answer.status_code, answer.json()["text"]) == (200, "Hello world")
    assert "x-levserve-ignored" not in answer.headers
    assert service.windows.detected
    missing = await SpeechService().hear(model=empty)
    assert missing.json()["error"]["code"] == "missing_required_parameter"


@pytest.mark.parametrize(("written", "is_streamed"), [("1", True), ("0", False), ("True", True), ("off", False)])
async def test_booleans_are_as_php_and_html_write_them(written, is_streamed):
    answer = await SpeechService().hear(stream=written)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream") is is_streamed


@pytest.mark.parametrize("language", ["EN", "English", " en ", "en-US", "eng", "auto", "AUTO"])
@pytest.mark.parametrize("is_english", [True, False])
async def test_names_and_cases_of_languages(language, is_english):
    service = SpeechService(is_english=is_english)
    answer = await service.hear(language=language, response_format="verbose_json")
    detects = language.lower() == "auto" and not is_english
    assert answer.json()["language"] == ("german" if detects else "english")
    assert bool(service.windows.detected) is detects


@pytest.mark.parametrize("num_words", [600, 10_000])
async def test_of_a_long_prompt_the_last_tokens_count_and_it_is_told(num_words):
    service = SpeechService()
    prompt = " ".join(["quick"] * num_words + ["brown"])
    answer = await service.hear(prompt=prompt, language="en")
    assert (answer.status_code, answer.headers["x-levserve-ignored"]) == (200, "prompt")
    ids = service.speech.prompt_ids(prompt)[-service.speech.max_prompt_tokens :]
    assert service.windows.calls[0][1][: len(ids) + 1] == (service.speech.tokens.previous, *ids)
    fitting = await service.hear(prompt="quick " * 10, language="en")
    assert "x-levserve-ignored" not in fitting.headers
    strict = await SpeechService(strict_fields=True).hear(prompt=prompt)
    assert (strict.status_code, strict.json()["error"]["param"]) == (400, "prompt")


async def test_of_long_hotwords_the_first_count():
    service = SpeechService()
    answer = await service.hear(hotwords="fox " * 400, prompt="brown", language="en")
    assert (answer.status_code, answer.headers["x-levserve-ignored"]) == (200, "hotwords")
    assert len(service.windows.calls[0][1]) == service.speech.max_prompt_tokens + 1 + 3


@pytest.mark.parametrize("seconds", [0.3, 0.755, 1.0, 2.0])
@pytest.mark.parametrize("granularity", ["segment", "word"])
async def test_no_time_is_after_the_end_of_the_recording(seconds, granularity):
    late = ((0, "Hello", 100, 150, " world", 208, 208), -0.2, 0.01)
    content = audio_file("wav", tone(seconds))
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": granularity}
    answer = (await SpeechService(late).hear(content=content, **fields)).json()
    timed = answer.get("segments", answer.get("words"))
    assert timed
    assert all(0 <= each["start"] <= each["end"] <= answer["duration"] == round(seconds, 3) for each in timed)
    if granularity == "segment":
        assert answer["text"] == "Hello world"
        as_said = (await SpeechService(late).hear(content=content, whisper_compatible=True, **fields)).json()
        assert [segment["end"] for segment in as_said["segments"]] == [2.0, 4.16]


async def test_subtitles_end_with_the_recording():
    content = audio_file("wav", tone(0.755))
    answer = await SpeechService(((0, "Hello", 208, 208), -0.2, 0.01)).hear(content=content, response_format="srt")
    assert "00:00:00,000 --> 00:00:00,750" in answer.text


async def test_an_empty_file_says_so():
    async with SpeechService().client() as client:
        for name in ("speech.wav", ""):
            answer = await client.post("/v1/audio/transcriptions", files={"file": (name, b"")}, data={"model": MODEL})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "file"
    assert (await SpeechService().hear(content=SECOND)).status_code == 200
