"""The check of a model that writes down what is said."""

import io
import json
import math
import wave
from array import array
from functools import cache
from typing import Any

from service.smoke.client import json_of
from service.smoke.events import DONE, data_of
from service.smoke.expectations import expect_error, expect_status, expect_value, take
from service.smoke.failures import CheckFailed, Reply
from service.smoke.report import Finding
from service.smoke.session import Session

TRANSCRIPTIONS = "/v1/audio/transcriptions"
SAMPLING_RATE, SECONDS, HERTZ, AMPLITUDE = 16_000, 2, 440, 8_000
NO_RECORDING = b"This is no recording."
DELTA, WHOLE = "transcript.text.delta", "transcript.text.done"


@cache
def recording() -> bytes:
    """Return a wave file of two seconds of a tone."""
    tone = (AMPLITUDE * math.sin(2 * math.pi * HERTZ * i / SAMPLING_RATE) for i in range(SECONDS * SAMPLING_RATE))
    output = io.BytesIO()
    with wave.open(output, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLING_RATE)
        file.writeframes(array("h", map(round, tone)).tobytes())
    return output.getvalue()


def hear(session: Session, content: bytes | None = None, /, **fields: str) -> Reply:
    """Send a recording, the same text for the same fields."""
    form = {"model": session.model_name, "seed": "0", **fields}
    return session.client.post_form(TRANSCRIPTIONS, form, recording() if content is None else content)


def check_hearing(session: Session) -> Finding:
    """Check that a recording has the same text as JSON, with segments and as a stream, and that a text is refused."""
    reply = hear(session)
    expect_status(reply, 200)
    text = take(reply, json_of(reply), "text", str)
    verbose = hear(session, response_format="verbose_json")
    expect_status(verbose, 200)
    document = json_of(verbose)
    expect_value(verbose, document, "text", (text,))
    expect_value(verbose, document, "task", ("transcribe",))
    language, duration_s = take(verbose, document, "language", str), take(verbose, document, "duration", float)
    if abs(duration_s - SECONDS) > 0.1:
        raise CheckFailed(f"a recording of {SECONDS} s is said to have {duration_s} s", verbose)
    num_segments = len(take(verbose, document, "segments", list))
    _check_stream(session, text)
    expect_error(hear(session, NO_RECORDING), 400, param="file")
    detail = f"{json.dumps(text[:40], ensure_ascii=False)} in {SECONDS} s of a tone, the same as a stream"
    facts = {"language": language, "segments": num_segments}
    return Finding(f"{detail}; a text is refused, {reply.seconds:.2f} s", facts)


def _check_stream(session: Session, text: str) -> None:
    reply = hear(session, stream="true")
    expect_status(reply, 200)
    events: list[Any] = [_event(reply, data) for data in data_of(reply.body.split(b"\n")) if data != DONE]
    deltas = "".join(take(reply, event, "delta", str) for event in events if event.get("type") == DELTA)
    if not events or events[-1].get("type") != WHOLE:
        raise CheckFailed(f"the stream does not end with {WHOLE}", reply)
    for name, said in (("deltas", deltas), (WHOLE, take(reply, events[-1], "text", str))):
        if said != text:
            raise CheckFailed(f"the stream's {name} say {said[:40]!r}, and the answer {text[:40]!r}", reply)


def _event(reply: Reply, data: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise CheckFailed(f"an event is not JSON: {data[:40]!r}", reply) from None
