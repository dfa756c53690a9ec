"""Server-sent events, parsed like the official client does and checked against OpenAI's format.

Source: https://platform.openai.com/docs/api-reference/chat-streaming, https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from service.smoke.client import Client
from service.smoke.expectations import expect_status, expect_usage, take
from service.smoke.failures import CheckFailed, Reply

DONE = "[DONE]"
FINISH_REASONS = ("stop", "length")


@dataclass(frozen=True)
class Streamed:
    """The content of a valid stream, and the times of its text in seconds since the request was sent."""

    text: str
    finish_reason: str
    completion_tokens: int
    num_events: int  # excluding [DONE]
    first_token_s: float
    last_token_s: float


def read_stream(client: Client, path: str, document: Mapping[str, Any]) -> Streamed:
    """Request a stream and read it completely.

    Raises:
        CheckFailed: the answer is not an event stream, breaks off, has an error event, or has no end, finish reason or
            usage.
    """
    streaming = {**document, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream(path, streaming) as answer:
        reply = answer.reply
        expect_status(reply, 200)
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            raise CheckFailed(
                f"the content type is {reply.headers.get('content-type')!r}, not text/event-stream", reply
            )
        chunks: list[tuple[float, Any]] = []
        try:
            for data in data_of(answer.lines(client.request_timeout_s)):
                arrived_s = time.monotonic() - answer.began_s
                if data == DONE:
                    return _streamed(reply, chunks, max_tokens=document["max_tokens"])
                chunks.append((arrived_s, _chunk(reply, data)))
        except CheckFailed as error:
            raise CheckFailed(f"{error.message}, after {len(chunks)} events", reply) from error
    raise CheckFailed(f"the stream broke off after {len(chunks)} events, without data: {DONE}", reply)


def data_of(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield the data of each event, skipping comments and other fields.

    Raises:
        CheckFailed: a line is not UTF-8.
    """
    parts: list[str] = []
    for line in lines:
        try:
            text = line.decode().rstrip("\r")
        except UnicodeDecodeError:
            raise CheckFailed("a line of the stream is not UTF-8") from None
        if text.startswith("data:"):
            parts.append(text.removeprefix("data:").removeprefix(" "))
        elif not text and parts:
            yield "\n".join(parts)
            parts = []


def _chunk(reply: Reply, data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        raise CheckFailed(f"an event is not JSON: {data:.80}", reply) from None
    if not isinstance(chunk, dict):
        raise CheckFailed(f"an event is not an object: {data:.80}", reply)
    if "error" in chunk:
        raise CheckFailed(f"the stream carried an error: {data:.200}", reply)
    return chunk


def _streamed(reply: Reply, chunks: list[tuple[float, Any]], *, max_tokens: int) -> Streamed:
    texts = [(arrived_s, text) for arrived_s, chunk in chunks if (text := _text(reply, chunk))]
    reasons = [reason for _, chunk in chunks for choice in chunk["choices"] if (reason := choice.get("finish_reason"))]
    if not texts:
        raise CheckFailed("the stream has no text", reply)
    if len(reasons) != 1 or reasons[0] not in FINISH_REASONS:
        raise CheckFailed(f"the stream's finish reasons are {reasons}, not one of stop, length", reply)
    last = chunks[-1][1]
    if not last.get("usage"):
        raise CheckFailed("the last event has no usage, although stream_options.include_usage was set", reply)
    if last["choices"]:
        raise CheckFailed("the event with the usage has choices; it must have none", reply)
    return Streamed(
        "".join(text for _, text in texts),
        reasons[0],
        expect_usage(reply, last, max_tokens=max_tokens),
        len(chunks),
        texts[0][0],
        texts[-1][0],
    )


def _text(reply: Reply, chunk: dict[str, Any]) -> str:
    """Return the text of a chat or completion chunk; the chunk with the usage has no choices."""
    choices = take(reply, chunk, "choices", list)
    if not choices:
        return ""
    choice = take(reply, chunk, "choices.0", dict)
    source, name = (take(reply, choice, "delta", dict), "content") if "delta" in choice else (choice, "text")
    return take(reply, source, name, str) if source.get(name) is not None else ""
