"""The check of a vision model."""

import base64
import json
import struct
import zlib
from functools import cache

from service.smoke.client import json_of
from service.smoke.events import FINISH_REASONS
from service.smoke.expectations import expect_error, expect_usage, expect_value, take
from service.smoke.failures import CheckFailed
from service.smoke.report import Finding
from service.smoke.session import Session

CHAT = "/v1/chat/completions"
SIDE, RED = 64, b"\xd0\x20\x20"
NO_IMAGE = b"This is no image."
MAX_TOKENS = 16


@cache
def picture() -> bytes:
    """Return a PNG of one colour.

    Source: https://www.w3.org/TR/png-3/
    """
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)  # 8 bits for each of red, green and blue
    rows = zlib.compress((b"\0" + RED * SIDE) * SIDE)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def check_seeing(session: Session) -> Finding:
    """Check that a question about an image is answered, and that bytes that are no image are refused."""
    reply = session.client.post(CHAT, _body(session, picture()))
    if reply.status != 200:
        raise CheckFailed(f"a question about an image is answered with {reply.status}, not 200", reply)
    answer = json_of(reply)
    text = take(reply, answer, "choices.0.message.content", str)
    reason = expect_value(reply, answer, "choices.0.finish_reason", FINISH_REASONS)
    expect_usage(reply, answer, max_tokens=MAX_TOKENS)
    if not text.strip():
        raise CheckFailed("the answer to a question about an image is empty", reply)
    expect_error(session.client.post(CHAT, _body(session, NO_IMAGE)), 400)
    quoted = json.dumps(text[:40], ensure_ascii=False)
    return Finding(f"{quoted} of a red square, {reason}; a text is refused, {reply.seconds:.2f} s")


def _body(session: Session, content: bytes) -> dict[str, object]:
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Which colour is it?"}]
    messages = [{"role": "user", "content": parts}]
    return {"model": session.model_name, "messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0}
