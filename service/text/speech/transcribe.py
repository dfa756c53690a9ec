"""A recording to its segments, window by window, as openai-whisper's `transcribe` does it.

    window    decoded at rising temperatures until the text is likely and does not repeat itself
    segments  what is between two timestamps
    next      begins at the end of the last segment that is complete

Source: https://github.com/openai/whisper/blob/v20250625/whisper/transcribe.py,
https://github.com/SYSTRAN/faster-whisper/blob/v1.2.1/faster_whisper/transcribe.py (which attempt is kept)
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from service.text.speech.model import SpeechModel, compression_ratio
from service.text.speech.tokens import TIMESTAMP_S
from service.text.speech.words import AlignedWord, Alignment, Word, WordTimes, align_words, with_words

FRAMES_PER_S = 100
FRAMES_PER_TIMESTAMP = round(FRAMES_PER_S * TIMESTAMP_S)
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MAX_COMPRESSION_RATIO = 2.4  # of a text; a higher one repeats itself
MIN_AVG_LOGPROB = -1.0
MAX_NO_SPEECH_PROB = 0.6
# Text that was sampled at a higher temperature is no guide to what comes next.
MAX_TRUSTED_TEMPERATURE = 0.5


class Window(NamedTuple):
    """A part of a recording, in frames; the rest of the model's window is silence."""

    begin: int
    num_frames: int

    @property
    def begin_s(self) -> float:
        """When it begins, in seconds."""
        return self.begin / FRAMES_PER_S


class Decoding(NamedTuple):
    """What one decoding of a window has found."""

    token_ids: tuple[int, ...]  # without the end
    avg_logprob: float  # of the tokens and the end
    no_speech_prob: float


class WindowDecoder(Protocol):
    """Decodes the windows of one recording."""

    async def detect_language(self, window: Window) -> str:
        """Return the code of the language that is likeliest."""
        ...

    async def decode(self, window: Window, prompt_ids: Sequence[int], temperature: float) -> Decoding:
        """Continue a prompt by a transcript; at temperature 0, by the likeliest tokens."""
        ...

    async def align(self, window: Window, start_ids: Sequence[int], text_ids: Sequence[int]) -> Alignment:
        """Return what the model attends to while it is given a text.

        Args:
            window: where the text is spoken.
            start_ids: the tokens that begin a transcript, without the one for no timestamps.
            text_ids: the text.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions:
    """What a client asks for."""

    language: str | None  # its code; None of an English-only model
    is_translated: bool = False
    temperatures: tuple[float, ...] = TEMPERATURES  # tried in turn
    prompt_ids: tuple[int, ...] = ()  # a text before the first window
    hotword_ids: tuple[int, ...] = ()  # before every window
    has_previous_text: bool = True  # whether a window's prompt has the text before it
    has_words: bool = False
    keeps_last: bool = False  # as openai-whisper: of texts that are all unlikely, the last one, and not the likeliest


@dataclass(frozen=True, kw_only=True)
class Segment:
    """What is said between two timestamps."""

    seek: int  # the begin of its window, in frames
    start: float  # seconds, as is `end`
    end: float
    text: str
    token_ids: tuple[int, ...]  # timestamps included
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[Word, ...] = ()

    def ended_by(self, end_s: float) -> "Segment":
        """Return the segment with no time after the end of its recording."""
        words = tuple(word._replace(start=min(word.start, end_s), end=min(word.end, end_s)) for word in self.words)
        return replace(self, start=min(self.start, end_s), end=min(self.end, end_s), words=words)


class Heard(NamedTuple):
    """What was found in one window; no segments where nobody speaks."""

    window: Window
    segments: tuple[Segment, ...]
    num_decodings: int
    num_tokens: int  # of all decodings


class _Attempt(NamedTuple):
    decoding: Decoding
    temperature: float
    compression_ratio: float
    num_decodings: int
    num_tokens: int


async def transcribe(
    decoder: WindowDecoder, model: SpeechModel, options: TranscribeOptions, *, clip: Window
) -> AsyncGenerator[Heard]:
    """Yield the segments of each window of a part of a recording, in order."""
    start_ids = _start_ids(model, options)
    previous = list(options.prompt_ids)
    last_speech_s = 0.0
    seek, end = clip.begin, clip.begin + clip.num_frames
    while seek < end:
        window = Window(seek, min(model.window_frames, end - seek))
        prompt_ids = [*_before(model, options.hotword_ids, previous), *start_ids]
        attempt = await _decoded(decoder, model, window, prompt_ids, options)
        if _is_silence(attempt.decoding):
            seek += window.num_frames
            yield Heard(window, (), attempt.num_decodings, attempt.num_tokens)
            continue
        segments, num_read = _cut(model, window, attempt)
        seek += num_read
        if options.has_words:
            text_ids = [[i for i in segment.token_ids if i < model.tokens.end] for segment in segments]
            words = await _words(decoder, model, window, text_ids, options)
            timed = with_words(
                [
                    WordTimes(segment.start, segment.end, len(ids))
                    for segment, ids in zip(segments, text_ids, strict=True)
                ],
                words,
                begin_s=window.begin_s,
                last_speech_s=last_speech_s,
            )
            segments = [
                replace(segment, start=times.start, end=times.end, words=times.words)
                for segment, times in zip(segments, timed, strict=True)
            ]
            last_word_end_s = _end_s(segments)
            if not _ends_with_one_timestamp(model, attempt.decoding) and last_word_end_s > window.begin_s:
                seek = round(last_word_end_s * FRAMES_PER_S)
            last_speech_s = last_word_end_s
        segments = [_without_nothing(segment) for segment in segments]
        previous += [token_id for segment in segments for token_id in segment.token_ids]
        if not options.has_previous_text or attempt.temperature > MAX_TRUSTED_TEMPERATURE:
            previous.clear()
        yield Heard(window, tuple(segments), attempt.num_decodings, attempt.num_tokens)


def first_window(model: SpeechModel, clip: Window) -> Window:
    """Return the first window of a part of a recording, whose language is taken for the whole."""
    return Window(clip.begin, min(model.window_frames, clip.num_frames))


def _start_ids(model: SpeechModel, options: TranscribeOptions) -> list[int]:
    return model.tokens.prompt(options.language, is_translated=options.is_translated, has_timestamps=True)


def _before(model: SpeechModel, hotword_ids: Sequence[int], previous: Sequence[int]) -> list[int]:
    """Return the tokens before a transcript: the hotwords, and as much of the text before as there is room for."""
    room = model.max_prompt_tokens - len(hotword_ids)
    text = [*hotword_ids, *(previous[-room:] if room > 0 else ())]
    return [model.tokens.previous, *text] if text else []


async def _decoded(
    decoder: WindowDecoder, model: SpeechModel, window: Window, prompt_ids: Sequence[int], options: TranscribeOptions
) -> _Attempt:
    """Decode a window at one temperature after the other, until the text is likely and does not repeat itself.

    If no text is, the likeliest is kept, of those that do not repeat themselves if there are any.
    """
    attempts, num_tokens = list[_Attempt](), 0
    for num_decodings, temperature in enumerate(options.temperatures, start=1):
        decoding = await decoder.decode(window, prompt_ids, temperature)
        num_tokens += len(decoding.token_ids) + 1
        ratio = compression_ratio(model.text(decoding.token_ids).strip())
        attempts.append(_Attempt(decoding, temperature, ratio, num_decodings, num_tokens))
        is_unlikely = decoding.avg_logprob < MIN_AVG_LOGPROB
        is_good = not is_unlikely and ratio <= MAX_COMPRESSION_RATIO
        if is_good or (is_unlikely and decoding.no_speech_prob > MAX_NO_SPEECH_PROB):
            return attempts[-1]
    last = attempts[-1]
    if options.keeps_last:
        return last
    fresh = [attempt for attempt in attempts if attempt.compression_ratio <= MAX_COMPRESSION_RATIO]
    likeliest = max(fresh or attempts, key=lambda attempt: attempt.decoding.avg_logprob)
    return likeliest._replace(num_decodings=last.num_decodings, num_tokens=last.num_tokens)


def _is_silence(decoding: Decoding) -> bool:
    return decoding.no_speech_prob > MAX_NO_SPEECH_PROB and decoding.avg_logprob <= MIN_AVG_LOGPROB


def _ends_with_one_timestamp(model: SpeechModel, decoding: Decoding) -> bool:
    """Whether nothing is said after the last segment."""
    return [model.tokens.is_timestamp(token_id) for token_id in decoding.token_ids[-2:]] == [False, True]


def _cut(model: SpeechModel, window: Window, attempt: _Attempt) -> tuple[list[Segment], int]:
    """Return the segments of a window, and how many frames of it they are read from."""
    tokens, token_ids = model.tokens, attempt.decoding.token_ids

    def segment(begin: int, end: int, start_s: float, end_s: float) -> Segment:
        return Segment(
            seek=window.begin,
            start=window.begin_s + start_s,
            end=window.begin_s + end_s,
            text=model.text(token_ids[begin:end]),
            token_ids=token_ids[begin:end],
            temperature=attempt.temperature,
            avg_logprob=attempt.decoding.avg_logprob,
            compression_ratio=attempt.compression_ratio,
            no_speech_prob=attempt.decoding.no_speech_prob,
        )

    is_time = [tokens.is_timestamp(token_id) for token_id in token_ids]
    cuts = [i for i in range(1, len(token_ids)) if is_time[i - 1] and is_time[i]]
    if not cuts:
        last = next((token_id for token_id in reversed(token_ids) if tokens.is_timestamp(token_id)), None)
        has_end = last is not None and last != tokens.first_timestamp
        duration_s = tokens.seconds(last) if has_end and last is not None else window.num_frames / FRAMES_PER_S
        return [segment(0, len(token_ids), 0.0, duration_s)], window.num_frames
    has_one_at_end = _ends_with_one_timestamp(model, attempt.decoding)
    if has_one_at_end:
        cuts.append(len(token_ids))
    segments = [
        segment(begin, end, tokens.seconds(token_ids[begin]), tokens.seconds(token_ids[end - 1]))
        for begin, end in zip([0, *cuts], cuts, strict=False)
    ]
    if has_one_at_end:
        return segments, window.num_frames
    # What is said after the last pair of timestamps is decoded again in the next window.
    return segments, (token_ids[cuts[-1] - 1] - tokens.first_timestamp) * FRAMES_PER_TIMESTAMP


async def _words(
    decoder: WindowDecoder,
    model: SpeechModel,
    window: Window,
    text_ids: Sequence[Sequence[int]],
    options: TranscribeOptions,
) -> list[AlignedWord]:
    flat = [token_id for ids in text_ids for token_id in ids]
    if not flat:
        return []
    start_ids = _start_ids(model, options)
    alignment = await decoder.align(window, start_ids, flat)
    return align_words(
        alignment,
        model,
        flat,
        num_start_ids=len(start_ids),
        num_positions=window.num_frames // FRAMES_PER_TIMESTAMP,
        language=options.language,
    )


def _end_s(segments: Sequence[Segment]) -> float:
    last_words = (segment.words[-1].end for segment in reversed(segments) if segment.words)
    return next(last_words, segments[-1].end)


def _without_nothing(segment: Segment) -> Segment:
    """Return a segment, emptied if it takes no time or has no text."""
    if segment.start != segment.end and segment.text.strip():
        return segment
    return replace(segment, text="", token_ids=(), words=())
