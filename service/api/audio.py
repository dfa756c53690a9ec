"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse, Response
from pydantic_core import to_json

from service.api.answers.audio import TranscriptionEvent, TranscriptionObject, VerboseTranscription
from service.api.dependencies import OpenCall
from service.api.hearing.answers import SUBTITLES, TEXT, events, json_document, verbose_document, written
from service.api.hearing.transcript import Transcript, Transcription, activity_of, options_of
from service.api.http.call import Call
from service.api.http.form import MEDIA_TYPE, form_body
from service.api.http.sse import EventStream
from service.api.openapi.responses import EVENTS, GENERATION_ERRORS, Responses, properties, reference, statuses
from service.api.schema.audio import AudioRequest
from service.errors import UnsupportedParameter
from service.media.samples import SAMPLE_BYTES, SAMPLING_RATE

router = APIRouter(tags=["audio"])

FILE_FIELD = {
    "type": "string",
    "format": "binary",
    "description": "The recording: audio, or a film, of which the first sound track is transcribed.",
}
_FORM_SCHEMA = {
    "type": "object",
    "properties": {"file": FILE_FIELD, **properties(AudioRequest)},
    "required": ["file", "model"],
}
FORM = {"requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": _FORM_SCHEMA}}}}
_TEXTS = {media_type.partition(";")[0]: {"schema": {"type": "string"}} for media_type in (TEXT, *SUBTITLES.values())}
ANSWERS: Responses = {
    200: {
        "content": {
            "application/json": {
                "schema": {"anyOf": [reference(TranscriptionObject), reference(VerboseTranscription)]}
            },
            EVENTS: {"schema": reference(TranscriptionEvent)},
            **_TEXTS,
        },
        "description": "The transcript, in the `response_format` that was asked for.",
    },
    **statuses(*GENERATION_ERRORS),
}

Form = Annotated[tuple[AudioRequest, bytes], Depends(form_body(AudioRequest))]


@router.post("/v1/audio/transcriptions", responses=ANSWERS, openapi_extra=FORM)
async def create_transcription(call: OpenCall, form: Form) -> Response:
    """Transcribe speech.

    Decoded as by openai-whisper's `transcribe`, in windows of 30 seconds that begin where the segments of the one
    before end. Deviations: the language is detected in the first window as it is decoded; of texts that are unlikely at
    every temperature the likeliest is kept, and no time is after the end of the recording, both unless
    `whisper_compatible` is set; usage is in seconds, rounded up, and in a stream in tokens.

    Source: https://platform.openai.com/docs/api-reference/audio/createTranscription
    """
    return await _answer(call, *form, is_translated=False)


@router.post("/v1/audio/translations", responses=ANSWERS, openapi_extra=FORM)
async def create_translation(call: OpenCall, form: Form) -> Response:
    """Translate speech into English.

    All fields of transcriptions have the same effect here.

    Source: https://platform.openai.com/docs/api-reference/audio/createTranslation
    """
    return await _answer(call, *form, is_translated=True)


async def _answer(call: Call, body: AudioRequest, content: bytes, *, is_translated: bool) -> Response:
    model = await call.hearing(body.model)
    options = options_of(body, model.speech, is_translated=is_translated, ignore=call.ignore)
    if body.has_words and not model.has_word_times:
        message = f"the model '{body.model}' has only times of segments. Send 'segment'."
        raise UnsupportedParameter("timestamp_granularities", message)
    call.log_fields["stream"] = body.stream
    sound = await call.unless_disconnected(
        call.deadline.within(call.api.media.sound(content, activity=activity_of(body), client=call.key))
    )
    call.log_fields["audio_s"] = round(len(sound.samples) / SAMPLING_RATE, 3)
    call.hold_bytes(len(sound.samples) * SAMPLE_BYTES)
    transcripts = Transcription(call, model, body, options, sound).transcripts()
    if body.stream:
        num_prompt_tokens = len(options.prompt_ids) + len(options.hotword_ids)
        with_segments = body.response_format == "verbose_json"
        found = events(transcripts, num_prompt_tokens, with_segments=with_segments)
        return EventStream(found, sequences=nullcontext(), deadline=call.deadline)
    transcript = await call.unless_disconnected(call.deadline.within(_last(transcripts)))
    match body.response_format:
        case "json":
            return _json(json_document(transcript))
        case "verbose_json":
            return _json(verbose_document(transcript, body, is_translated=is_translated))
        case response_format:
            media_type = SUBTITLES.get(response_format, TEXT)
            return PlainTextResponse(written(transcript, response_format), media_type=media_type)


async def _last(transcripts: AsyncIterator[Transcript]) -> Transcript:
    return [transcript async for transcript in transcripts][-1]


def _json(document: dict[str, Any] | Sequence[Any]) -> Response:
    return Response(to_json(document), media_type="application/json")
