"""Scripted decodings, replayed: what openai-whisper's `transcribe` makes of them, and what ours does."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from service.text.speech.model import SpeechModel
from service.text.speech.tokens import read_speech_tokens
from service.text.speech.transcribe import (
    TEMPERATURES,
    Decoding,
    TranscribeOptions,
    Window,
    first_window,
    transcribe,
)
from service.text.speech.words import Alignment
from service.text.tokenizer import Tokenizer
from tests.text.speech.scripts import NUM_SCRIPTS, WINDOW_FRAMES, Script, attention_scores, script_of
from tests.text.speech.small_whisper import replayed_whisper

FILE = Path(__file__).with_name("transcribe_references.json.gz")
EXPECTED = json.loads(gzip.decompress(FILE.read_bytes()))
TIME_S = 0.02


def speech_model():
    backend = replayed_whisper()
    tokens = read_speech_tokens("test", backend, {}, {})
    return SpeechModel(tokens, Tokenizer(backend), context_len=448, window_frames=WINDOW_FRAMES, num_mels=80)


MODEL = speech_model()


def ids_of(texts):
    ids = []
    for text in texts:
        is_time = isinstance(text, int)
        ids += [MODEL.tokens.first_timestamp + text] if is_time else MODEL.tokenizer.backend.encode(text).ids
    return tuple(ids)


class Replay:
    """Answers what the script says, and notes what it was asked."""

    def __init__(self, script):
        self.script, self.calls, self.num_alignments = script, [], 0

    async def detect_language(self, window):
        return self.script.language

    async def decode(self, window, prompt_ids, temperature):
        texts, avg_logprob, no_speech_prob = self.script.decodings[len(self.calls) % len(self.script.decodings)]
        self.calls.append({"prompt": list(prompt_ids), "temperature": temperature})
        return Decoding(ids_of(texts), avg_logprob, no_speech_prob)

    async def align(self, window, start_ids, text_ids):
        seed = self.script.seed * 1000 + self.num_alignments
        self.num_alignments += 1
        num_tokens = len(start_ids) + 1 + len(text_ids) + 1
        return Alignment(attention_scores(seed, num_tokens))


def replayed(script):
    async def collect():
        replay = Replay(script)
        options = TranscribeOptions(
            language=script.language,
            is_translated=script.is_translated,
            temperatures=script.temperatures,
            prompt_ids=tuple(MODEL.prompt_ids(script.prompt)) if script.prompt else (),
            has_previous_text=script.has_previous_text,
            has_words=script.has_words,
            keeps_last=True,
        )
        heard = [found async for found in transcribe(replay, MODEL, options, clip=Window(0, script.num_frames))]
        return replay, heard

    return asyncio.run(collect())


@pytest.mark.parametrize("seed", range(NUM_SCRIPTS))
def test_a_recording_is_transcribed_as_by_openai(seed):
    script, expected = script_of(seed), EXPECTED[seed]
    replay, heard = replayed(script)
    assert replay.calls == expected["calls"]
    segments = [segment for found in heard for segment in found.segments]
    assert len(segments) == len(expected["segments"])
    for segment, wanted in zip(segments, expected["segments"], strict=True):
        assert (segment.seek, segment.text, list(segment.token_ids)) == (
            wanted["seek"],
            wanted["text"],
            wanted["tokens"],
        )
        assert (segment.temperature, segment.avg_logprob) == (wanted["temperature"], wanted["avg_logprob"])
        assert segment.compression_ratio == wanted["compression_ratio"]
        assert segment.no_speech_prob == wanted["no_speech_prob"]
        assert (segment.start, segment.end) == pytest.approx((wanted["start"], wanted["end"]), abs=1e-9)
        assert_words_equal(segment.words, wanted.get("words", []))
    assert "".join(segment.text for segment in segments) == expected["text"]


def assert_words_equal(words, wanted):
    assert [word.text for word in words] == [word["word"] for word in wanted]
    for word, other in zip(words, wanted, strict=True):
        assert (word.start, word.end) == pytest.approx((other["start"], other["end"]), abs=TIME_S)


def test_scripts_reach_every_branch():
    segments = [segment for result in EXPECTED for segment in result["segments"]]
    assert {call["temperature"] for result in EXPECTED for call in result["calls"]} >= set(TEMPERATURES)
    assert sum(len(segment.get("words", [])) for segment in segments) > 500
    assert any(not segment["text"] for segment in segments)
    assert any(not result["segments"] and result["calls"] for result in EXPECTED)


def test_a_clip_is_transcribed_as_if_it_were_alone():
    script = Script(0, 9000, "en", False, False, False, None, (0.0,), (((0, "Hello", 40, 40), -0.1, 0.0),))

    async def collect(clip):
        options = TranscribeOptions(language="en", temperatures=(0.0,))
        return [found async for found in transcribe(Replay(script), MODEL, options, clip=clip)]

    whole = asyncio.run(collect(Window(0, 900)))
    later = asyncio.run(collect(Window(3000, 900)))
    assert [found.window.begin + 3000 for found in whole] == [found.window.begin for found in later]
    assert first_window(MODEL, Window(3000, 900)) == later[0].window
    assert later[-1].window.begin + later[-1].window.num_frames == 3900


def test_hotwords_come_before_every_window_and_leave_room_for_the_text_before_it():
    script = Script(0, 9000, "en", False, True, False, None, (0.0,), (((0, *("fox",) * 200, 1500, 1500), -0.1, 0.0),))
    hotwords = tuple(MODEL.prompt_ids("quick brown"))

    async def collect():
        replay = Replay(script)
        options = TranscribeOptions(language="en", temperatures=(0.0,), hotword_ids=hotwords)
        async for _ in transcribe(replay, MODEL, options, clip=Window(0, 9000)):
            pass
        return replay.calls

    calls = asyncio.run(collect())
    assert len(calls) == 3
    for call in calls:
        assert tuple(call["prompt"][: len(hotwords) + 1]) == (MODEL.tokens.previous, *hotwords)
        assert len(call["prompt"]) <= 1 + MODEL.max_prompt_tokens + 3


def attempts(*decodings, **options):
    """Return the segments of a window that is decoded so at each temperature, and how many decodings there were."""
    script = Script(0, 900, "en", False, False, False, None, TEMPERATURES, decodings)

    async def collect():
        asked = TranscribeOptions(language="en", temperatures=TEMPERATURES[: len(decodings)], **options)
        [heard] = [found async for found in transcribe(Replay(script), MODEL, asked, clip=Window(0, 900))]
        return heard.segments[0], heard.num_decodings

    return asyncio.run(collect())


def test_of_texts_that_are_all_unlikely_the_likeliest_is_kept():
    decodings = ((("Hello",), -3.0, 0.0), ((" world",), -1.2, 0.0), (("fox",), -4.6, 0.0))
    segment, num_decodings = attempts(*decodings)
    assert (segment.text, segment.temperature, segment.avg_logprob, num_decodings) == (" world", 0.2, -1.2, 3)
    assert attempts(*decodings, keeps_last=True)[0].avg_logprob == -4.6


def test_a_text_that_repeats_itself_is_kept_only_if_all_do():
    repeated = ((" fox",) * 200, -0.1, 0.0)
    segment, _ = attempts(repeated, ((" world",), -1.5, 0.0), ((" fox",), -2.0, 0.0))
    assert (segment.text, segment.temperature) == (" world", 0.2)
    segment, _ = attempts(repeated, ((" fox",) * 210, -0.05, 0.0))
    assert segment.temperature == 0.2


def test_a_text_that_is_likely_ends_the_ladder():
    segment, num_decodings = attempts(((" fox",), -1.5, 0.0), ((" world",), -0.9, 0.0), ((" Hello",), -0.1, 0.0))
    assert (segment.text, num_decodings) == (" world", 2)
