"""The forms of POST /v1/audio/transcriptions and /v1/audio/translations: their fields by the rule of `wire`.

Source: https://platform.openai.com/docs/api-reference/audio/createTranscription,
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#transcriptions-api (`seed`, `hotwords`),
https://github.com/SYSTRAN/faster-whisper/blob/v1.2.1/faster_whisper/transcribe.py (`vad_filter`,
`condition_on_previous_text`, `hotwords`)
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import BeforeValidator, Field

from service.api.schema.generation import MAX_NAME_CHARS
from service.api.schema.wire import NeutralValues, WireObject
from service.errors import InvalidParameter

MAX_TEXT_CHARS = 64 * 1024  # of a prompt, of which the last tokens count
MAX_SEED = 2**63 - 1
STREAMED_FORMATS = ("json", "text", "verbose_json")

type AudioResponseFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]
type Granularity = Literal["segment", "word"]


def _listed(value: Any) -> Any:
    """Return a list of one for a value that is no list: forms have no lists of one."""
    return value if isinstance(value, list) else [value]


class ServerVad(WireObject):
    """How a recording is cut where nobody speaks."""

    type: Literal["server_vad"]
    """`server_vad`."""
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """The probability from which on a moment is speech."""
    prefix_padding_ms: int = Field(default=300, ge=0, le=10_000)
    """Milliseconds that are kept before and after speech."""
    silence_duration_ms: int = Field(default=200, ge=0, le=60_000)
    """Milliseconds of silence that end speech."""


class AudioRequest(WireObject):
    """The form of POST /v1/audio/transcriptions and /v1/audio/translations, besides the file itself."""

    hints: ClassVar[NeutralValues] = {
        "keywords": (),
        "languages": (),
        "priority": (0,),
        "stream_continuous_usage_stats": (False,),
        "stream_include_usage": (True,),
        "user": (),
    }
    refused: ClassVar[NeutralValues] = {
        "beam_size": (1,),
        "best_of": (1,),
        "frequency_penalty": (0, 0.0),
        "include": (),
        "known_speaker_names": (),
        "known_speaker_references": (),
        "length_penalty": (1, 1.0),
        "max_completion_tokens": (),
        "min_p": (0, 0.0),
        "n": (1,),
        "presence_penalty": (0, 0.0),
        "repetition_penalty": (1, 1.0),
        "to_language": ("en",),
        "top_k": (-1, 0),
        "top_p": (1, 1.0),
        "use_beam_search": (False,),
        "vad_config": (),
    }
    remedies: ClassVar[Mapping[str, str]] = {
        "beam_size": "windows are decoded greedily, and sampled if the text is unlikely.",
        "use_beam_search": "windows are decoded greedily, and sampled if the text is unlikely.",
        "include": "log-probabilities of tokens are not returned; 'verbose_json' has those of segments.",
        "known_speaker_names": "speakers are not distinguished.",
        "known_speaker_references": "speakers are not distinguished.",
        "n": "send the file several times with other seeds.",
        "to_language": "Whisper translates to English only, with /v1/audio/translations.",
        "vad_config": "send 'vad_filter', or a 'chunking_strategy' with its own options.",
    }

    model: str = Field(max_length=MAX_NAME_CHARS)
    """The name of a speech model."""
    language: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The language that is spoken, by its ISO 639-1 or 639-3 code, with or without a region, or its name in English;
    without it, or as `auto`, it is detected."""
    prompt: str | None = Field(default=None, max_length=MAX_TEXT_CHARS)
    """A text in whose style and spelling the transcript goes on; of a long one, the last tokens count that fit into
    half of the model's context, 223 for OpenAI's models."""
    response_format: AudioResponseFormat | Literal["diarized_json"] = "json"
    """`json`, `text`, `srt`, `vtt`, or `verbose_json` for segments, words and their times."""
    temperature: float = Field(default=0.0, ge=0, le=1)
    """The first temperature of a ladder in steps of 0.2 up to 1, which is climbed while a text is unlikely or repeats
    itself; 0 begins with the likeliest tokens."""
    timestamp_granularities: Annotated[tuple[Granularity, ...], BeforeValidator(tuple), BeforeValidator(_listed)] = (
        "segment",
    )
    """`segment`, `word` or both: what `verbose_json` has times of. Times of words take another pass of the model."""
    stream: bool = False
    """Whether to send the text as events, window by window; with `verbose_json` the segments too."""
    chunking_strategy: Literal["auto"] | ServerVad | None = None
    """`auto`, or an object of type `server_vad`: cut the recording where nobody speaks and decode the parts at the same
    time. It is faster, and less exact: no part knows the text before it."""
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    """vLLM's: makes the sampling above temperature 0 repeatable."""
    condition_on_previous_text: bool = True
    """faster-whisper's: whether each window's prompt has the text before it."""
    vad_filter: bool = False
    """faster-whisper's: whether to remove what is no speech before decoding."""
    hotwords: str | None = Field(default=None, max_length=MAX_TEXT_CHARS)
    """faster-whisper's: words that come before every window, as hints of how they are written."""
    whisper_compatible: bool = False
    """Whether, as in openai-whisper, the last text is kept if every temperature's is unlikely, and not the likeliest,
    and times may be after the end of the recording."""

    @property
    def has_words(self) -> bool:
        """Whether the answer has the times of words."""
        return "word" in self.timestamp_granularities

    @override
    def check_consistency(self) -> None:
        """Refuse speakers, words without a place for them, a stream of subtitles, and two ways to find speech."""
        if self.response_format == "diarized_json":
            message = "Invalid 'response_format': speakers are not distinguished. Send 'verbose_json'."
            raise InvalidParameter(message, param="response_format")
        if self.has_words and self.response_format != "verbose_json":
            message = "'timestamp_granularities' has 'word', which needs 'response_format': 'verbose_json'. Send both."
            raise InvalidParameter(message, param="timestamp_granularities")
        if self.stream and self.response_format not in STREAMED_FORMATS:
            message = f"'stream' contradicts 'response_format': '{self.response_format}', which is written as a whole."
            raise InvalidParameter(message, param="stream")
        if self.stream and self.has_words:
            message = "'stream' contradicts the granularity 'word': its events have only times of segments."
            raise InvalidParameter(message, param="stream")
        if self.vad_filter and self.chunking_strategy is not None:
            message = "'vad_filter' contradicts 'chunking_strategy': each chooses what is decoded. Send one of them."
            raise InvalidParameter(message, param="vad_filter")
