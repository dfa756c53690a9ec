"""Recordings through the routes: formats, streams, languages, speech alone, and refusals by name."""

import asyncio
import json

import numpy as np
import pytest
from openai.types.audio import Transcription, TranscriptionVerbose

from service.api.http.request_queue import Caps
from service.errors import EngineError, Overloaded
from tests.api.hearing.scripted_speech import HELLO, MODEL, SECOND, SPEECH, SpeechService
from tests.api.scripted_engine import Service
from tests.media.audio_files import audio_file, tone, video

pytestmark = pytest.mark.anyio

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
MINUTE = audio_file("flac", tone(65))
LATER = ((0, " how", " are", " you", "?", 100, 100), -0.3, 0.02)


async def error_of(answer, status=400):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error["code"], error["param"]


def events_of(text):
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_recording_becomes_text():
    service = SpeechService()
    answer = await service.hear()
    assert answer.json() == {"text": "Hello world", "usage": {"type": "duration", "seconds": 1}}
    Transcription.model_validate(answer.json())
    assert service.windows.detected
    assert not service.windows.is_open


async def test_every_format_says_the_same_words_and_times():
    answers = {}
    for response_format in ("json", "text", "srt", "vtt", "verbose_json"):
        answers[response_format] = await SpeechService().hear(response_format=response_format)
        assert answers[response_format].status_code == 200
    verbose = answers["verbose_json"].json()
    TranscriptionVerbose.model_validate(verbose)
    [segment] = verbose["segments"]
    assert (segment["start"], segment["end"], segment["text"].strip()) == (0.0, 1.0, "Hello world")
    assert answers["text"].text == "Hello world\n"
    assert answers["srt"].text == "1\n00:00:00,000 --> 00:00:01,000\nHello world\n\n"
    assert answers["vtt"].text == "WEBVTT\n\n00:00.000 --> 00:01.000\nHello world\n\n"
    assert answers["vtt"].headers["content-type"].startswith("text/vtt")
    assert verbose["text"] == answers["json"].json()["text"] == "Hello world"


async def test_verbose_json_has_every_field_computed():
    service = SpeechService()
    answer = (await service.hear(response_format="verbose_json")).json()
    assert answer.keys() == {"task", "language", "duration", "text", "usage", "segments"}
    assert (answer["task"], answer["language"], answer["duration"]) == ("transcribe", "german", 1.0)
    [segment] = answer["segments"]
    assert segment["tokens"][0] == service.speech.tokens.first_timestamp
    assert (segment["id"], segment["seek"], segment["temperature"]) == (0, 0, 0.0)
    assert (segment["avg_logprob"], segment["no_speech_prob"]) == (-0.2, 0.01)
    assert segment["compression_ratio"] == pytest.approx(11 / 19)


@pytest.mark.parametrize("name", ["timestamp_granularities", "timestamp_granularities[]"])
async def test_words_have_times_with_and_without_brackets(name):
    said = ((0, "Hello", " world", 50), -0.2, 0.01)
    answer = await SpeechService(said).hear(response_format="verbose_json", **{name: ["word", "segment"]})
    words = answer.json()["words"]
    assert [word["word"] for word in words] == ["Hello", "world"]
    assert all(word["start"] <= word["end"] for word in words)
    assert answer.json()["segments"]
    alone = await SpeechService(said).hear(response_format="verbose_json", **{name: "word"})
    assert "segments" not in alone.json()
    assert alone.json()["words"] == words


async def test_a_stream_has_the_text_of_the_answer_as_it_grows():
    whole = (await SpeechService(HELLO, LATER).hear(content=MINUTE)).json()["text"]
    streamed = await SpeechService(HELLO, LATER).hear(content=MINUTE, stream=True)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *deltas, done = events_of(streamed.text)
    assert {event["type"] for event in deltas} == {"transcript.text.delta"}
    assert len(deltas) > 2
    assert "".join(event["delta"] for event in deltas) == done["text"] == whole
    assert done["type"] == "transcript.text.done"
    usage = done["usage"]
    assert usage["input_tokens"] == usage["input_token_details"]["audio_tokens"] == 65 * 50
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_a_verbose_stream_has_the_segments_of_the_answer_as_they_come():
    options = {"content": MINUTE, "response_format": "verbose_json"}
    whole = (await SpeechService(HELLO, LATER).hear(**options)).json()
    streamed = events_of((await SpeechService(HELLO, LATER).hear(**options, stream=True)).text)
    segments = [event for event in streamed if event["type"] == "transcript.text.segment"]
    assert segments == [{"type": "transcript.text.segment", **segment} for segment in whole["segments"]]
    assert len(segments) > 2
    assert streamed[1] == segments[0], "with the first window, and not at the end"
    assert streamed[-1]["text"] == whole["text"]


async def test_a_stream_that_fails_says_so_and_has_no_end():
    answer = await SpeechService(HELLO, EngineError("it broke")).hear(content=MINUTE, stream=True)
    lines = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert lines[-1]["error"]["type"] == "server_error"
    assert "it broke" not in answer.text


async def test_a_translation_is_asked_for_with_its_token():
    service = SpeechService()
    answer = await service.hear(TRANSLATIONS, language="de", response_format="verbose_json")
    assert answer.json()["task"] == "translate"
    assert service.windows.calls[0][1][-1] == service.speech.tokens.translate
    assert not service.windows.detected


@pytest.mark.parametrize("language", ["zh", "Chinese", "mandarin"])
async def test_a_language_may_be_given_by_code_and_by_name(language):
    service = SpeechService()
    answer = await service.hear(language=language, response_format="verbose_json")
    assert answer.json()["language"] == "chinese"
    assert service.windows.calls[0][1][1] == service.speech.tokens.languages["zh"]


async def test_prompt_and_hotwords_come_before_the_transcript():
    service = SpeechService()
    await service.hear(prompt="quick brown", hotwords="fox", language="en")
    prompt = service.windows.calls[0][1]
    ids = [*service.speech.prompt_ids("fox"), *service.speech.prompt_ids("quick brown")]
    assert prompt == (service.speech.tokens.previous, *ids, *prompt[-3:])
    number = await service.hear(prompt="42", language="en")
    assert number.status_code == 200


@pytest.mark.parametrize(
    ("temperature", "tried"), [(None, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0.5, [0.5, 0.7, 0.9]), (1, [1.0])]
)
async def test_a_temperature_is_where_the_ladder_begins(temperature, tried):
    service = SpeechService((("Hello",), -5.0, 0.0))
    await service.hear(**{} if temperature is None else {"temperature": temperature})
    assert [call[2] for call in service.windows.calls] == pytest.approx(tried)
    assert service.metrics.of_model(MODEL).value("levserve_audio_fallbacks_total") == len(tried) - 1


async def test_a_window_is_told_the_text_before_it_unless_the_request_says_not():
    for has_text in (True, False):
        service = SpeechService(HELLO, LATER)
        await service.hear(content=MINUTE, condition_on_previous_text=has_text)
        assert (len(service.windows.calls[1][1]) > 3) is has_text


async def test_a_seed_makes_sampling_repeatable():
    service = SpeechService()
    await service.hear(seed=7)
    assert service.windows.terms.seed == 7


async def test_silence_is_left_out_and_times_are_those_of_the_recording():
    service = SpeechService(((0, "Hello", 100, 200, " world", 270), -0.2, 0.0))
    answer = await service.hear(content=SPEECH, vad_filter=True, response_format="verbose_json")
    first, second, *_ = answer.json()["segments"]
    assert service.windows.recording.duration_s < answer.json()["duration"] - 1
    assert 0.4 < first["start"] < 1.2
    assert second["end"] < answer.json()["duration"]


async def test_nothing_is_decoded_where_nobody_speaks():
    service = SpeechService()
    answer = await service.hear(vad_filter=True, response_format="verbose_json")
    assert (answer.json()["text"], answer.json()["segments"], answer.json()["language"]) == ("", [], "german")
    assert not service.windows.calls
    streamed = await service.hear(vad_filter=True, stream=True)
    assert [event["type"] for event in events_of(streamed.text)] == ["transcript.text.done"]


@pytest.mark.parametrize("strategy", ["auto", '{"type": "server_vad"}', {"chunking_strategy[type]": "server_vad"}])
async def test_parts_between_silences_are_decoded_by_themselves(strategy):
    service = SpeechService(((0, "Hello", 50), -0.2, 0.0))
    fields = strategy if isinstance(strategy, dict) else {"chunking_strategy": strategy}
    answer = await service.hear(content=SPEECH, response_format="verbose_json", language="en", **fields)
    assert answer.status_code == 200, answer.text
    assert all(len(call[1]) == 3 for call in service.windows.calls)
    assert answer.json()["segments"][0]["start"] > 0.3


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": None}, ("missing_required_parameter", "model")),
        ({"response_format": "diarized_json"}, ("invalid_value", "response_format")),
        ({"response_format": "xml"}, ("invalid_value", "response_format")),
        ({"language": "klingon"}, ("invalid_value", "language")),
        ({"temperature": 1.5}, ("invalid_value", "temperature")),
        ({"temperature": "hot"}, ("invalid_value", "temperature")),
        ({"temperature": "NaN"}, ("invalid_value", "temperature")),
        ({"seed": -1}, ("invalid_value", "seed")),
        ({"stream": "perhaps"}, ("invalid_value", "stream")),
        ({"stream": True, "response_format": "srt"}, ("invalid_value", "stream")),
        (
            {"stream": True, "response_format": "verbose_json", "timestamp_granularities[]": "word"},
            ("invalid_value", "stream"),
        ),
        ({"timestamp_granularities": "word"}, ("invalid_value", "timestamp_granularities")),
        ({"timestamp_granularities[]": ["letter"], "response_format": "verbose_json"},
         ("invalid_value", "timestamp_granularities[0]")),
        ({"chunking_strategy": "by hand"}, ("invalid_value", "chunking_strategy")),
        ({"chunking_strategy": "auto", "vad_filter": True}, ("invalid_value", "vad_filter")),
        ({"prompt": "<|startoftranscript|>"}, ("invalid_value", "prompt")),
        ({"prompt": "so far<|endoftext|>"}, ("invalid_value", "prompt")),
        ({"hotwords": "<|translate|>"}, ("invalid_value", "hotwords")),
        ({"include[]": ["logprobs"]}, ("unsupported_parameter", "include")),
        ({"known_speaker_names[]": ["me"]}, ("unsupported_parameter", "known_speaker_names")),
        ({"n": 2}, ("unsupported_parameter", "n")),
        ({"seed": ["1", "2"]}, ("invalid_value", "seed")),
        ({"response_format": ["json", "text"]}, ("invalid_value", "response_format")),
        ({"language[]": ["en"]}, ("invalid_value", "language")),
        ({"model": [MODEL, MODEL]}, ("invalid_value", "model")),
    ],
    ids=json.dumps,
)  # fmt: skip
async def test_a_field_is_refused_by_its_name(fields, expected):
    service = SpeechService()
    answer = await service.hear(**fields)
    code, param = await error_of(answer)
    assert (code, param) == expected
    assert not service.windows.calls


async def test_a_model_of_english_alone_takes_no_other_language_and_translates_nothing():
    service = SpeechService(is_english=True)
    assert (await service.hear(language="en", response_format="verbose_json")).json()["language"] == "english"
    assert not service.windows.detected
    assert await error_of(await service.hear(language="de")) == ("invalid_value", "language")
    assert await error_of(await service.hear(TRANSLATIONS)) == ("invalid_value", "model")


async def test_times_of_words_are_refused_where_there_are_none():
    fields = {"response_format": "verbose_json", "timestamp_granularities": "word"}
    answer = await SpeechService(has_word_times=False).hear(**fields)
    assert await error_of(answer) == ("unsupported_parameter", "timestamp_granularities")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_audio"),
        (b"text as mp3", "invalid_audio"),
        (b"#EXTM3U\nhttp://example.com/a.ts", "invalid_audio"),
        (b"ffconcat version 1.0\nfile /etc/passwd", "invalid_audio"),
        (b"\x89PNG\r\n\x1a\n" + bytes(64), "invalid_audio"),
        (SECOND[:30], "invalid_audio"),
        (video(has_sound=False), "invalid_audio"),
    ],
    ids=range(7),
)
async def test_a_file_that_is_no_recording_is_refused(content, code):
    service = SpeechService()
    assert await error_of(await service.hear(content=content)) == (code, "file")
    assert (await service.hear()).status_code == 200


async def test_a_model_that_does_not_hear_and_one_that_hears_alone_say_where_they_answer():
    for path in (TRANSCRIPTIONS, TRANSLATIONS):
        async with Service().client() as client:
            answer = await client.post(path, files={"file": ("a.wav", SECOND)}, data={"model": MODEL})
        assert await error_of(answer) == ("unsupported_model", "model")
        assert "/v1/chat/completions" in answer.json()["error"]["message"]
    chat = await SpeechService().post("/v1/completions", {"model": MODEL, "prompt": "hi"})
    assert await error_of(chat) == ("unsupported_model", "model")
    assert TRANSCRIPTIONS in chat.json()["error"]["message"]


async def test_a_model_that_hears_says_so_among_the_models():
    async with SpeechService().client() as client:
        [model] = (await client.get("/v1/models")).json()["data"]
    assert model["modalities"] == {"input": ["audio"], "output": ["text"]}


async def test_an_engine_that_is_full_is_a_429():
    full = SpeechService(Overloaded(running=1, limit=1))
    assert await error_of(await full.hear(), 429) == ("server_overloaded", None)
    assert not full.windows.is_open


async def test_samples_count_as_held_memory():
    service = SpeechService(caps=Caps(max_open_body_bytes=2**21))
    silence = audio_file("flac", np.zeros(16000 * 200, np.int16))
    assert (await service.hear()).status_code == 200
    assert (await service.hear(content=silence)).status_code == 429
    assert (await service.hear()).status_code == 200


async def test_windows_are_closed_when_the_client_leaves():
    async def forever():
        await asyncio.Event().wait()

    service = SpeechService(forever)
    asking = asyncio.ensure_future(service.hear())
    while not service.windows.calls:
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert not service.windows.is_open


async def test_seconds_windows_and_tokens_are_counted_and_logged_without_names(caplog):
    service = SpeechService(HELLO, LATER)
    with caplog.at_level("INFO"):
        await service.hear(content=MINUTE, name="my secret.flac", prompt="quick brown fox")
    series = service.metrics.of_model(MODEL)
    assert series.value("levserve_audio_seconds_total") == pytest.approx(65)
    assert series.value("levserve_audio_windows_total") == len(service.windows.calls)
    logged = " ".join(str(vars(record)) for record in caplog.records)
    assert "'audio_s': 65.0" in logged
    for said in ("secret", "brown", "Hello"):
        assert said not in logged
