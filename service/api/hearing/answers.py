"""A transcript as the answers that clients ask for.

Source: https://platform.openai.com/docs/api-reference/audio/verbose-json-object,
https://platform.openai.com/docs/api-reference/audio/transcript-text-done-event,
https://github.com/openai/whisper/blob/v20250625/whisper/utils.py (WriteSRT, WriteVTT)
"""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

from service.api.hearing.transcript import Transcript
from service.api.schema.audio import AudioRequest
from service.text.speech.languages import language_name
from service.text.speech.transcribe import Segment

TOKENS_PER_S = 50  # positions of the encoder's output
TEXT = "text/plain; charset=utf-8"
SUBTITLES = {"srt": "application/x-subrip; charset=utf-8", "vtt": "text/vtt; charset=utf-8"}


def written(transcript: Transcript, response_format: str) -> str:
    """Return a transcript as `text`, `srt` or `vtt`."""
    match response_format:
        case "srt":
            return "".join(_srt(number, segment) for number, segment in enumerate(transcript.segments, start=1))
        case "vtt":
            return "WEBVTT\n\n" + "".join(map(_vtt, transcript.segments))
        case _:
            return f"{transcript.text}\n"


def json_document(transcript: Transcript) -> dict[str, Any]:
    """Return the answer in `json`."""
    return {"text": transcript.text, "usage": _duration_usage(transcript)}


def verbose_document(transcript: Transcript, body: AudioRequest, *, is_translated: bool) -> dict[str, Any]:
    """Return the answer in `verbose_json`."""
    document: dict[str, Any] = {
        "task": "translate" if is_translated else "transcribe",
        "language": language_name(transcript.language),
        "duration": round(transcript.duration_s, 3),
        "text": transcript.text,
        "usage": _duration_usage(transcript),
    }
    if "segment" in body.timestamp_granularities:
        document["segments"] = [_segment(number, segment) for number, segment in enumerate(transcript.segments)]
    if body.has_words:
        document["words"] = [
            {"word": word.text.strip(), "start": word.start, "end": word.end}
            for segment in transcript.segments
            for word in segment.words
        ]
    return document


async def events(
    transcripts: AsyncIterator[Transcript], num_prompt_tokens: int, *, with_segments: bool
) -> AsyncIterator[Sequence[dict[str, Any]]]:
    """Yield the events of a stream: the text as it grows, with or without its segments, then the whole."""
    sent, transcript, num_segments = "", None, 0
    async for transcript in transcripts:
        text = transcript.text
        if len(text) > len(sent):
            yield [{"type": "transcript.text.delta", "delta": text[len(sent) :]}]
            sent = text
        new = transcript.segments[num_segments:] if with_segments else ()
        if new:
            yield [
                {"type": "transcript.text.segment", **_segment(number, segment)}
                for number, segment in enumerate(new, start=num_segments)
            ]
            num_segments += len(new)
    assert transcript is not None  # the last one comes even if nothing is said
    yield [{"type": "transcript.text.done", "text": sent, "usage": _token_usage(transcript, num_prompt_tokens)}]


def _duration_usage(transcript: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(transcript.duration_s)}


def _token_usage(transcript: Transcript, num_prompt_tokens: int) -> dict[str, Any]:
    num_audio_tokens = math.ceil(transcript.duration_s * TOKENS_PER_S)
    num_input_tokens = num_audio_tokens + num_prompt_tokens
    return {
        "type": "tokens",
        "input_tokens": num_input_tokens,
        "input_token_details": {"audio_tokens": num_audio_tokens, "text_tokens": num_prompt_tokens},
        "output_tokens": transcript.num_text_tokens,
        "total_tokens": num_input_tokens + transcript.num_text_tokens,
    }


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": segment.seek,
        "start": round(segment.start, 2),
        "end": round(segment.end, 2),
        "text": segment.text,
        "tokens": list(segment.token_ids),
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


def _srt(number: int, segment: Segment) -> str:
    times = f"{_time(segment.start, hours=True, mark=',')} --> {_time(segment.end, hours=True, mark=',')}"
    return f"{number}\n{times}\n{_line(segment)}\n\n"


def _vtt(segment: Segment) -> str:
    return f"{_time(segment.start)} --> {_time(segment.end)}\n{_line(segment)}\n\n"


def _line(segment: Segment) -> str:
    """Return a segment's text, without what a subtitle would take for times."""
    return segment.text.strip().replace("-->", "->")


def _time(seconds: float, *, hours: bool = False, mark: str = ".") -> str:
    milliseconds = round(seconds * 1000)
    whole_s, milliseconds = divmod(milliseconds, 1000)
    minutes, whole_s = divmod(whole_s, 60)
    whole_hours, minutes = divmod(minutes, 60)
    before = f"{whole_hours:02d}:" if hours or whole_hours else ""
    return f"{before}{minutes:02d}:{whole_s:02d}{mark}{milliseconds:03d}"
