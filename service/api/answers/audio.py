"""The answers of /v1/audio/transcriptions and /v1/audio/translations.

Source: https://platform.openai.com/docs/api-reference/audio
"""

from typing import Literal, NotRequired, TypedDict


class DurationUsage(TypedDict):
    """The transcript."""

    type: Literal["duration"]
    seconds: int
    """Of the recording, rounded up."""


class AudioTokensDetails(TypedDict):
    """What the input's tokens are."""

    audio_tokens: int
    """50 for each second of the recording."""
    text_tokens: int
    """Tokens of the prompt and the hotwords."""


class AudioTokenUsage(TypedDict):
    """Token counts of a streamed transcript."""

    type: Literal["tokens"]
    input_tokens: int
    input_token_details: AudioTokensDetails
    output_tokens: int
    """Tokens of the transcript, timestamps included."""
    total_tokens: int


class TranscriptionObject(TypedDict):
    """The transcript with `response_format: json`."""

    text: str
    usage: DurationUsage


class TranscriptionSegment(TypedDict):
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


class TranscriptionWord(TypedDict):
    """A word and its times."""

    word: str
    start: float
    """Seconds."""
    end: float
    """Seconds."""


class VerboseTranscription(TypedDict):
    """The transcript with `response_format: verbose_json`."""

    task: Literal["transcribe", "translate"]
    language: str
    """The spoken language, by its name in English."""
    duration: float
    """Seconds of the recording."""
    text: str
    usage: DurationUsage
    segments: NotRequired[list[TranscriptionSegment] | None]
    """With the granularity `segment`."""
    words: NotRequired[list[TranscriptionWord] | None]
    """With the granularity `word`."""


class TranscriptionEvent(TypedDict):
    """An event of a stream."""

    type: Literal["transcript.text.delta", "transcript.text.segment", "transcript.text.done"]
    delta: NotRequired[str | None]
    """The text that has come to the transcript."""
    text: NotRequired[str | None]
    """The text of a segment; the whole text, in the last event."""
    usage: NotRequired[AudioTokenUsage | None]
    """In the last event."""
