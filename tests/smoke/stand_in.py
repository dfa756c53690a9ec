"""A small server that passes every check of the smoke test, except where a test breaks it."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "tiny"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LOGPROBS = {"tokens": ["He", "llo"], "token_logprobs": [-0.5, -1], "top_logprobs": [{}, {}], "text_offset": [0, 2]}


def error(message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


@dataclass
class Answer:
    status: int
    document: Any  # a list: the events of a stream
    content_type: str = "application/json"
    ignored: str = ""


@dataclass
class StandIn:
    """The behaviour of the server; `answers` overrides it by path."""

    answers: dict[str, Callable[[dict[str, Any]], Answer | None]] = field(default_factory=dict)
    api_key: str | None = None
    identity_token: str | None = None
    ready_after: int = 0  # tries
    model: str = MODEL
    is_strict: bool = False  # refuse unknown fields
    names_ignored: bool = True  # name unknown fields in a header
    is_done_sent: bool = True
    sees: bool = False  # take images
    is_cut: bool = False  # close a stream in the middle of a chunk
    lines: list[str] = field(default_factory=list)  # what was asked

    def answer(self, path: str, body: bytes, headers: Any) -> Answer:
        self.lines.append(path)
        if self.identity_token is not None:
            given = headers.get("X-Serverless-Authorization") or headers.get("Authorization")
            if given != f"Bearer {self.identity_token}":
                return Answer(403, "<html>Forbidden</html>", "text/html")
        if path == "/health/ready":
            return self.health()
        if self.api_key is not None and headers.get("Authorization") != f"Bearer {self.api_key}":
            return Answer(401, error("Incorrect API key provided.", code="invalid_api_key"))
        try:
            document = json.loads(body) if body else {}
        except ValueError:
            return Answer(400, error("not JSON"))
        broken = self.answers.get(path, lambda _: None)(document)
        return broken or self._route(path, document)

    def health(self) -> Answer:
        if self.lines.count("/health/ready") > self.ready_after:
            return Answer(
                200, {"status": "answering", "seconds": 3.25, "phases_done_seconds": {"weights": 2.5, "warm": 0.5}}
            )
        progress = {"phase": "weights", "bytes_done": 1000, "bytes_total": 64000}
        return Answer(503, {"status": "starting", **progress})

    def _route(self, path: str, document: dict[str, Any]) -> Answer:
        one: dict[str, Any] = {"id": self.model, "object": "model", "max_model_len": 128}
        if self.sees:
            one["modalities"] = {"input": ["text", "image"], "output": ["text"]}
        match path:
            case "/v1/models":
                return Answer(200, {"object": "list", "data": [one]})
            case _ if path.startswith("/v1/models/"):
                return Answer(200, one)
            case "/v1/chat/completions" | "/v1/completions":
                return self.generate(document, is_chat=path == CHAT)
        return Answer(404, error("There is no such route.", code="unknown_url"))

    def generate(self, document: dict[str, Any], *, is_chat: bool) -> Answer:
        unknown = [name for name in document if name.startswith("levserve_")]
        if unknown and self.is_strict:
            return Answer(400, error("Unknown parameter.", param=unknown[0], code="unknown_parameter"))
        if document["model"] != self.model:
            ignored = ", ".join(unknown) if self.names_ignored else ""
            return Answer(404, error("No such model.", param="model", code="model_not_found"), ignored=ignored)
        if document.get("stream"):
            has_usage = document.get("stream_options", {}).get("include_usage", False)
            events = stream_events(is_chat=is_chat)[: None if has_usage else -1]
            return Answer(200, events, "text/event-stream; charset=utf-8")
        message = {"role": "assistant", "content": "Hello"}
        choice = {"message": message} if is_chat else {"text": "Hello", "logprobs": LOGPROBS}
        kind = "chat.completion" if is_chat else "text_completion"
        choices = [{"index": 0, "finish_reason": "stop", **choice}]
        answer = {"object": kind, "model": self.model, "choices": choices, "usage": USAGE}
        return Answer(200, answer, ignored=", ".join(unknown) if self.names_ignored else "")


def stream_events(*, is_chat: bool = True) -> list[Any]:
    def choice(text: str, reason: str | None = None) -> dict[str, Any]:
        content = {"delta": {"content": text}} if is_chat else {"text": text}
        return {"choices": [{"index": 0, "finish_reason": reason, **content}], "usage": None}

    return [choice("Hel"), choice("lo"), choice("", "stop"), {"choices": [], "usage": USAGE}]


class StandInServer:
    """A running stand-in."""

    def __init__(self, does: StandIn) -> None:
        self.does = does

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                send(self, does, does.answer(self.path, body, self.headers))

            do_POST = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # a client that went away
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "StandInServer":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def send(handler: BaseHTTPRequestHandler, does: StandIn, answer: Answer) -> None:
    handler.send_response(answer.status)
    handler.send_header("content-type", answer.content_type)
    handler.send_header("x-request-id", "req_1")
    if answer.ignored:
        handler.send_header("x-levserve-ignored", answer.ignored)
    if isinstance(answer.document, list):
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for document in answer.document:
            send_chunk(handler, document if isinstance(document, bytes) else b"data: " + json.dumps(document).encode())
            time.sleep(0.002)
        if does.is_cut:
            handler.wfile.write(b"40\r\ndata: {")
        else:
            if does.is_done_sent:
                send_chunk(handler, b"data: [DONE]")
            handler.wfile.write(b"0\r\n\r\n")
        handler.close_connection = True
        return
    body = answer.document.encode() if isinstance(answer.document, str) else json.dumps(answer.document).encode()
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def send_chunk(handler: BaseHTTPRequestHandler, event: bytes) -> None:
    event += b"\n\n"
    handler.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
    handler.wfile.flush()
