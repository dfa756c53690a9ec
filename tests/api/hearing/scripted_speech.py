"""A model that hears what a script says, and the app around it."""

import contextlib
import json
from dataclasses import replace

from service.api.application import create_api
from service.api.http.access_log import AccessLog
from service.api.served import ServedSpeechModel
from service.api.work.media import MediaProcesses
from service.api.work.text_threads import TextThreads
from service.observability.metrics import Metrics
from service.text.speech.model import SpeechModel
from service.text.speech.tokens import ENGLISH_VOCAB_SIZE, read_speech_tokens
from service.text.speech.transcribe import Decoding
from service.text.speech.words import Alignment
from service.text.tokenizer import Tokenizer
from tests.api.scripted_engine import MODEL, ScriptedReadiness, Service
from tests.media.audio_files import audio_file, speech, tone
from tests.text.speech.scripts import WINDOW_FRAMES, attention_scores
from tests.text.speech.small_whisper import replayed_whisper

BACKEND = replayed_whisper()
TOKENIZER = Tokenizer(BACKEND)
SECOND = audio_file("wav", tone(1))
SPEECH = audio_file("flac", speech())
MEDIA = MediaProcesses(TextThreads(), max_file_bytes=25 * 2**20)
HELLO = ((0, "Hello", " world", 50, 50), -0.2, 0.01)


def speech_model(*, is_english=False):
    config = {"vocab_size": ENGLISH_VOCAB_SIZE} if is_english else {}
    tokens = read_speech_tokens("test", BACKEND, config, {})
    return SpeechModel(tokens, TOKENIZER, context_len=448, window_frames=WINDOW_FRAMES, num_mels=80)


class ScriptedWindows:
    """Answers the decodings of a script in turn, and notes what it was asked."""

    def __init__(self, model, script):
        self.model, self.script = model, script
        self.calls, self.detected, self.is_open = [], [], False
        self.recording = self.terms = None

    @contextlib.asynccontextmanager
    async def listen(self, recording, terms):
        self.recording, self.terms, self.is_open = recording, terms, True
        try:
            yield self
        finally:
            self.is_open = False

    async def detect_language(self, window):
        self.detected.append(window)
        return "de"

    async def decode(self, window, prompt_ids, temperature):
        found = self.script[len(self.calls) % len(self.script)]
        self.calls.append((window, tuple(prompt_ids), temperature))
        if isinstance(found, Exception):
            raise found
        if callable(found):
            return await found()
        texts, avg_logprob, no_speech_prob = found
        ids = []
        for text in texts:
            first = self.model.tokens.first_timestamp
            ids += [first + text] if isinstance(text, int) else BACKEND.encode(text).ids
        return Decoding(tuple(ids), avg_logprob, no_speech_prob)

    async def align(self, window, start_ids, text_ids):
        num_tokens = len(start_ids) + 1 + len(text_ids) + 1
        return Alignment(attention_scores(len(self.calls), num_tokens))


class SpeechService(Service):
    """The app with one model, which hears."""

    def __init__(self, *script, is_english=False, has_word_times=True, strict_fields=False, **settings):
        self.speech = speech_model(is_english=is_english)
        self.windows = ScriptedWindows(self.speech, script or (HELLO,))
        self.readiness = ScriptedReadiness(
            ServedSpeechModel(
                name=MODEL,
                created=1_700_000_000,
                tokenizer=TOKENIZER,
                max_model_len=448,
                vocab_size=TOKENIZER.vocab_size,
                system_fingerprint="fp_1",
                speech=self.speech,
                listen=self.windows.listen,
                has_word_times=has_word_times,
            )
        )
        self.metrics = Metrics()
        self.fastapi = create_api(self.readiness, self.metrics, **settings)
        if not settings:  # starting a process takes longer than most tests
            self.fastapi.state.context = replace(self.fastapi.state.context, media=MEDIA)
        self.app = AccessLog(self.fastapi, metrics=self.metrics, strict_fields=strict_fields, tracer=lambda: None)

    async def hear(self, path="/v1/audio/transcriptions", content=SECOND, name="speech.wav", **fields):
        form = {"model": MODEL} | fields
        data = {key: value if isinstance(value, list) else as_form(value) for key, value in form.items()}
        if form["model"] is None:
            del data["model"]
        async with self.client() as client:
            return await client.post(path, files={"file": (name, content)}, data=data)


def as_form(value):
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(value)
