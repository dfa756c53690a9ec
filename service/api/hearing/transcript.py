"""Transcribe a recording: whole, with silence removed, or in parallel parts."""

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from service.api.http.call import Call
from service.api.schema.audio import AudioRequest, ServerVad
from service.api.served import ServedSpeechModel, WindowTerms
from service.engine.request import BACKGROUND_PRIORITY
from service.errors import InvalidParameter
from service.media.log_mel import FRAMES_PER_S, HOP_SIZE, Recording
from service.media.samples import SAMPLING_RATE, SampleSpan, Sound
from service.media.speech_parts import JoinedSpeech, grouped
from service.media.voice_activity import VoiceActivity
from service.observability.clock import Clock, QueueDeadline
from service.text.speech.languages import language_code
from service.text.speech.model import SpeechModel
from service.text.speech.transcribe import (
    TEMPERATURES,
    Heard,
    Segment,
    TranscribeOptions,
    Window,
    WindowDecoder,
    first_window,
    transcribe,
)

ENGLISH = "en"
PARTS_AT_ONCE = 8  # of one recording
TEMPERATURE_STEP = 0.2
TIMES_PER_S = 100  # as answers round them
ANY_LANGUAGE = "auto"  # whisper.cpp's


@dataclass
class Transcript:
    """The transcript so far, and what it took."""

    duration_s: float
    language: str = ENGLISH  # its code
    segments: list[Segment] = field(default_factory=list[Segment])
    num_windows: int = 0
    num_decodings: int = 0
    num_tokens: int = 0  # of all decodings
    num_text_tokens: int = 0  # of the transcript
    has_late_ends: bool = False  # whether times may be after the end of the recording, as the model says them

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(segment.text for segment in self.segments).strip()

    def add(self, heard: Heard) -> None:
        """Add the segments of a window; segments in which nothing was said are left out."""
        said = [segment for segment in heard.segments if segment.text]
        if not self.has_late_ends:
            end_s = math.floor(round(self.duration_s * TIMES_PER_S, 3)) / TIMES_PER_S
            said = [segment.ended_by(end_s) for segment in said]
        self.segments += said
        self.num_windows += 1
        self.num_decodings += heard.num_decodings
        self.num_tokens += heard.num_tokens
        self.num_text_tokens += sum(len(segment.token_ids) for segment in said)


def activity_of(body: AudioRequest) -> VoiceActivity | None:
    """Return how to look for speech; None if the request does not ask for it."""
    if body.vad_filter:
        return VoiceActivity()
    if body.chunking_strategy is None:
        return None
    strategy = ServerVad(type="server_vad") if body.chunking_strategy == "auto" else body.chunking_strategy
    return VoiceActivity(strategy.threshold, strategy.silence_duration_ms / 1000, strategy.prefix_padding_ms / 1000)


def options_of(
    body: AudioRequest, model: SpeechModel, *, is_translated: bool, ignore: Callable[[list[str]], None]
) -> TranscribeOptions:
    """Return how the windows are decoded, but for a language that is still to be detected.

    Args:
        body: the form.
        model: what transcribes.
        is_translated: whether the text is English, whatever is spoken.
        ignore: receives the fields of which a part has no effect, since there is no room for it.

    Raises:
        InvalidParameter: the model does not know the language, or translates none, or a text names a special token.
    """
    most = model.max_prompt_tokens
    prompt_ids, hotword_ids = _ids(body.prompt, model, "prompt"), _ids(body.hotwords, model, "hotwords")
    ignore([name for name, ids in (("prompt", prompt_ids), ("hotwords", hotword_ids)) if len(ids) > most])
    if is_translated and not model.tokens.is_multilingual:
        message = f"Invalid 'model': '{body.model}' knows only English, so it translates nothing."
        raise InvalidParameter(message, param="model")
    return TranscribeOptions(
        language=_language(body, model),
        is_translated=is_translated,
        temperatures=temperatures_from(body.temperature),
        prompt_ids=tuple(prompt_ids[-most:]),
        hotword_ids=tuple(hotword_ids[:most]),
        has_previous_text=body.condition_on_previous_text,
        has_words=body.has_words,
        keeps_last=body.whisper_compatible,
    )


def temperatures_from(first: float) -> tuple[float, ...]:
    """Return the temperatures that are tried in turn: from the first one in steps of 0.2 up to 1."""
    if not first:
        return TEMPERATURES
    return tuple(first + TEMPERATURE_STEP * step for step in range(int((1 + 1e-6 - first) / TEMPERATURE_STEP) + 1))


def _language(body: AudioRequest, model: SpeechModel) -> str | None:
    if body.language is None or body.language.strip().lower() == ANY_LANGUAGE:
        return None
    code = language_code(body.language)
    known = model.tokens.languages if model.tokens.is_multilingual else (ENGLISH,)
    if code is None or code not in known:
        reason = "knows only English" if not model.tokens.is_multilingual else "does not know this language"
        message = f"Invalid 'language': the model '{body.model}' {reason}. Send one of {len(known)} ISO 639-1 codes, "
        raise InvalidParameter(message + "such as 'en', or leave it out.", param="language")
    return code


def _ids(text: str | None, model: SpeechModel, param: str) -> list[int]:
    """Return the tokens of a text before windows.

    Raises:
        InvalidParameter: it names a token that is not text.
    """
    if text is None or not text.strip():
        return []
    ids = model.prompt_ids(text, param)
    if any(token_id >= model.tokens.end for token_id in ids):
        message = f"Invalid '{param}': it has the name of a token that is not text, such as '<|startoftranscript|>'."
        raise InvalidParameter(message, param=param)
    return ids


class Transcription:
    """The transcription of one recording for one request."""

    def __init__(
        self, call: Call, model: ServedSpeechModel, body: AudioRequest, options: TranscribeOptions, sound: Sound
    ) -> None:
        """Begin nothing yet.

        Args:
            call: the HTTP request.
            model: what transcribes.
            body: its form.
            options: as `options_of` returns them.
            sound: the recording.
        """
        self._call, self._model, self._body, self._options = call, model, body, options
        self._seconds = len(sound.samples) / SAMPLING_RATE
        cuts = body.vad_filter and sound.speech is not None
        self._joined = JoinedSpeech(sound.samples, sound.speech) if cuts and sound.speech is not None else None
        samples = sound.samples if self._joined is None else self._joined.samples
        speech = model.speech
        self._recording = Recording(samples, num_mels=speech.num_mels, window_frames=speech.window_frames)
        self._parts = [Window(0, self._recording.num_frames)]
        if body.chunking_strategy is not None and sound.speech is not None:
            self._parts = _parts(sound.speech, speech.window_frames, self._recording.num_frames)

    async def transcripts(self) -> AsyncGenerator[Transcript]:
        """Yield the transcript after each window, in order; it is one object that grows.

        What it took is counted, also if it is not read to its end.

        Raises:
            Overloaded, Draining, EngineStopped: the engine does not accept a window now.
            EngineError: the engine failed.
        """
        transcript = Transcript(self._seconds, has_late_ends=self._body.whisper_compatible)
        is_silent = False
        try:
            async with self._model.listen(self._recording, self._terms()) as decoder:
                options = await self._in_language(decoder)
                transcript.language = options.language or ENGLISH
                async with aclosing(self._heard(decoder, options)) as found:
                    async for heard in found:
                        transcript.add(heard if self._joined is None else _restored(heard, self._joined.original_s))
                        yield transcript
            if not transcript.num_windows:
                is_silent = True
                yield transcript
        finally:
            if transcript.num_windows or is_silent:
                self._count(transcript)

    async def _in_language(self, decoder: WindowDecoder) -> TranscribeOptions:
        """Return the options with the language, detected in the first window if the request states none."""
        speech, options = self._model.speech, self._options
        if options.language is not None or not speech.tokens.is_multilingual:
            return options
        first = self._parts[0] if self._parts else Window(0, 0)
        return replace(options, language=await decoder.detect_language(first_window(speech, first)))

    async def _heard(self, decoder: WindowDecoder, options: TranscribeOptions) -> AsyncGenerator[Heard]:
        """Yield the segments of parts that are decoded a few at a time, in order."""
        speech = self._model.speech
        if len(self._parts) == 1:
            async for heard in transcribe(decoder, speech, options, clip=self._parts[0]):
                yield heard
            return
        at_once = asyncio.Semaphore(PARTS_AT_ONCE)

        async def collect(part: Window) -> list[Heard]:
            async with at_once:
                return [heard async for heard in transcribe(decoder, speech, options, clip=part)]

        tasks = [asyncio.create_task(collect(part)) for part in self._parts]
        try:
            for task in tasks:
                for heard in await task:
                    yield heard
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _terms(self) -> WindowTerms:
        call = self._call

        def wait(num_tokens: int, clock: Clock) -> QueueDeadline | None:
            call.clocks.append(clock)
            return call.wait_in_queue(num_tokens)

        return WindowTerms(
            request_id=call.id,
            seed=secrets.randbits(63) if self._body.seed is None else self._body.seed,
            priority=BACKGROUND_PRIORITY if call.is_background else 0,
            flow=call.key.name,
            weight=call.key.weight,
            cache_salt=call.cache_salt,
            wait=wait,
        )

    def _count(self, transcript: Transcript) -> None:
        """Count what a transcript took."""
        series = self._call.api.metrics.of_model(self._model.name)
        series.audio_seconds.inc(transcript.duration_s)
        series.audio_windows.inc(transcript.num_windows)
        series.audio_fallbacks.inc(transcript.num_decodings - transcript.num_windows)
        self._call.log_fields |= {
            "windows": transcript.num_windows,
            "decodings": transcript.num_decodings,
            "completion_tokens": transcript.num_tokens,
        }


def _parts(speech: Sequence[SampleSpan], window_frames: int, num_frames: int) -> list[Window]:
    """Return the parts that are decoded at the same time, each at most one window unless somebody speaks on."""
    parts: list[Window] = []
    for span in grouped(speech, window_frames * HOP_SIZE):
        begin, end = span.begin // HOP_SIZE, min(num_frames, math.ceil(span.end / HOP_SIZE))
        if end > begin:
            parts.append(Window(begin, end - begin))
    return parts


def _restored(heard: Heard, original_s: Callable[..., float]) -> Heard:
    """Return segments, with the times that it had before silences were cut out."""

    def at(start: float, end: float) -> tuple[float, float]:
        begun = original_s(start)
        return round(begun, 2), round(max(begun, original_s(end, is_end=True)), 2)

    def restored(segments: Iterable[Segment]) -> Iterable[Segment]:
        for segment in segments:
            words = []
            for word in segment.words:
                start, end = at(word.start, word.end)
                words.append(word._replace(start=start, end=end))
            start, end = at(segment.start, segment.end)
            seek = round(original_s(segment.seek / FRAMES_PER_S) * FRAMES_PER_S)
            yield replace(segment, seek=seek, start=start, end=end, words=tuple(words))

    return heard._replace(segments=tuple(restored(heard.segments)))
