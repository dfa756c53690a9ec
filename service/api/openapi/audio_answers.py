"""The answers of /v1/audio/transcriptions and /v1/audio/translations.

Source: https://platform.openai.com/docs/api-reference/audio
"""

from typing import Literal

from service.api.openapi.answer_object import AnswerObject


class DurationUsage(AnswerObject):
    """The transcript."""

    type: Literal["duration"]
    seconds: int
    """Of the recording, rounded up."""


class AudioTokensDetails(AnswerObject):
    """What the input's tokens are."""

    audio_tokens: int
    """50 for each second of the recording."""
    text_tokens: int
    """Tokens of the prompt and the hotwords."""


class AudioTokenUsage(AnswerObject):
    """Token counts of a streamed transcript."""

    type: Literal["tokens"]
    input_tokens: int
    input_token_details: AudioTokensDetails
    output_tokens: int
    """Tokens of the transcript, timestamps included."""
    total_tokens: int


class TranscriptionObject(AnswerObject):
    """The transcript with `response_format: json`."""

    text: str
    usage: DurationUsage


class TranscriptionSegment(AnswerObject):
    """What is said between two timestamps."""

    id: int
    """Its number, from 0."""
    seek: int
    """Where its window begins, in hundredths of a second."""
    start: float
    """Seconds."""
    end: float
    """Seconds."""
    text: str
    tokens: list[int]
    """Ids of its tokens, timestamps included."""
    temperature: float
    """The temperature at which its window was decoded."""
    avg_logprob: float
    """The mean log-probability of the tokens of its window."""
    compression_ratio: float
    """How many times shorter the text of its window is when compressed."""
    no_speech_prob: float
    """The probability that nobody speaks in its window."""


class TranscriptionWord(AnswerObject):
    """A word and its times."""

    word: str
    start: float
    """Seconds."""
    end: float
    """Seconds."""


class VerboseTranscription(AnswerObject):
    """The transcript with `response_format: verbose_json`."""

    task: Literal["transcribe", "translate"]
    language: str
    """The spoken language, by its name in English."""
    duration: float
    """Seconds of the recording."""
    text: str
    usage: DurationUsage
    segments: list[TranscriptionSegment] | None = None
    """With the granularity `segment`."""
    words: list[TranscriptionWord] | None = None
    """With the granularity `word`."""


class TranscriptionEvent(AnswerObject):
    """An event of a stream."""

    type: Literal["transcript.text.delta", "transcript.text.segment", "transcript.text.done"]
    delta: str | None = None
    """The text that has come to the transcript."""
    text: str | None = None
    """The text of a segment; the whole text, in the last event."""
    usage: AudioTokenUsage | None = None
    """In the last event."""
