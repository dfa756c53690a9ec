"""`levserve smoke` is green against a service that is in order, and red, with what is wrong, against any other."""

import base64
import io
import json
import socket
import threading
import time

import pytest
from PIL import Image, UnidentifiedImageError

from service.cli import build_parser
from service.smoke.client import Client, Credentials
from service.smoke.command import run
from service.smoke.failures import Unreachable
from tests.smoke.stand_in import (
    CHAT,
    COMPLETIONS,
    LOGPROBS,
    USAGE,
    Answer,
    StandIn,
    StandInServer,
    error,
    stream_events,
)


class Run:
    """One run of the command."""

    def __init__(self, capsys, url: str, *flags: str) -> None:
        self.code = run(build_parser().parse_args(["smoke", url, "--timeout", "5", "--requests", "2", *flags]))
        self.out, self.err = capsys.readouterr()

    @property
    def statuses(self) -> dict[str, str]:
        lines = (line.split() for line in self.out.splitlines() if line.startswith("  ") and line[2] != " ")
        return {name: status for status, name, *_ in lines}

    @property
    def failed(self) -> list[str]:
        return [name for name, status in self.statuses.items() if status == "FAIL"]


@pytest.fixture
def smoke(capsys):
    def start(does: StandIn, *flags: str) -> Run:
        with StandInServer(does) as server:
            return Run(capsys, server.url, *flags)

    return start


def streaming(events, **does) -> StandIn:
    def answer(document):
        return Answer(200, events, "text/event-stream") if document.get("stream") else None

    return StandIn({CHAT: answer}, **does)


def always(path: str, answer: Answer) -> StandIn:
    return StandIn({path: lambda _: answer})


def test_all_is_green_with_a_line_a_check(smoke):
    ran = smoke(StandIn())
    assert ran.code == 0, ran.out
    assert set(ran.statuses.values()) == {"ok"}
    assert list(ran.statuses) == ["ready", "models", "auth", "chat", "errors", "stream", "completions", "latency"]
    assert "at once; its start took 3.2 s, weights 2.5, warm 0.5" in ran.out
    assert "log-probabilities" in ran.out
    assert ran.out.splitlines()[-1].startswith("green: 8 passed, in ")


def test_the_address_may_end_with_v1_as_the_clients_do(capsys):
    with StandInServer(StandIn()) as server:
        assert Run(capsys, f"{server.url}/v1/").code == 0


def test_json_is_one_document_with_the_numbers(smoke):
    ran = smoke(StandIn(), "--json")
    document = json.loads(ran.out)
    assert document["is_green"] is True
    assert document["model"] == "tiny"
    facts = {check["name"]: check.get("facts", {}) for check in document["checks"]}
    assert facts["ready"]["phases_seconds"] == {"weights": 2.5, "warm": 0.5}
    assert facts["latency"]["requests"] == 2
    assert facts["latency"]["first_token_seconds_p50"] > 0


def test_a_cold_start_is_waited_for_with_its_progress(smoke):
    ran = smoke(StandIn(ready_after=2))
    assert ran.code == 0
    assert "and 3 tries" in ran.out
    assert "starting, weights, 1,000 of 64,000 bytes" in ran.err


def test_a_wrong_model_is_named_with_the_right_one(smoke):
    ran = smoke(StandIn(), "--model", "big")
    assert (ran.code, ran.failed) == (1, ["models"])
    assert "serves tiny, not big" in ran.out
    assert ran.statuses["chat"] == "skip"
    assert "GET /v1/models answered 200, request id req_1" in ran.out


def test_one_that_never_gets_ready_is_red_with_its_last_words(smoke):
    ran = smoke(StandIn(ready_after=1000), "--timeout", "1")
    assert (ran.code, ran.failed) == (1, ["ready"])
    assert "not ready after 1 s and " in ran.out
    assert "at last: starting, weights, 1,000 of 64,000 bytes" in ran.out
    assert set(ran.statuses.values()) == {"FAIL", "skip"}


def test_connection_refused(capsys):
    with StandInServer(StandIn()) as server:
        pass
    ran = Run(capsys, server.url, "--timeout", "0.5")
    assert (ran.code, ran.failed) == (1, ["ready"])
    assert "connection refused" in ran.out


def test_an_address_where_nothing_listens_is_waited_for_only_if_that_is_asked_for(capsys):
    with StandInServer(StandIn()) as server:
        pass
    began_s = time.monotonic()
    code = run(build_parser().parse_args(["smoke", server.url]))
    assert code == 1
    assert time.monotonic() - began_s < 60  # of the 300 that a start may take
    assert f"nothing listens at {server.url}. Start the service, or wait with --timeout" in capsys.readouterr().out


def test_no_such_host_is_not_waited_for(capsys):
    ran = Run(capsys, "http://no-such-host.invalid", "--timeout", "600")
    assert (ran.code, ran.failed) == (1, ["ready"])
    assert "there is no such host" in ran.out


def test_something_else_at_the_address(smoke):
    ran = smoke(StandIn({"/health/ready": lambda _: None}, ready_after=0), "--timeout", "0.5")
    assert ran.code == 0
    does = StandIn()
    does.health = lambda: Answer(200, {"status": "ok"})
    assert "is this the address of Levserve?" in smoke(does).out
    does.health = lambda: Answer(404, "nothing here", "text/plain")
    assert "answered 404 instead of 200" in smoke(does, "--timeout", "1").out


@pytest.mark.parametrize(
    ("path", "failed"),
    [
        (CHAT, {"errors", "chat", "stream"}),
        (COMPLETIONS, {"completions"}),
        ("/v1/models", {"models"}),
    ],
)
def test_one_that_answers_500_is_red_where_it_does(smoke, path, failed):
    ran = smoke(always(path, Answer(500, error("The server had an error.", code="internal_error"))))
    assert ran.code == 1
    assert set(ran.failed) == failed
    assert "answered 500 instead of" in ran.out
    assert "The server had an error." in ran.out


@pytest.mark.parametrize(
    ("does", "message"),
    [
        (streaming(stream_events()[:2], is_cut=True), "broke off in the middle of the answer, after 2 events"),
        (streaming(stream_events(), is_done_sent=False), "the stream broke off after 4 events, without data: [DONE]"),
        (streaming(stream_events()[:3]), "the last event has no usage"),
        (streaming([stream_events()[-1]]), "the stream has no text"),
        (streaming([*stream_events()[:2], stream_events()[-1]]), "the stream's finish reasons are []"),
        (streaming([stream_events()[0], error("The engine failed.")]), "the stream carried an error"),
        (streaming([b"data: {"]), "an event is not JSON"),
        (streaming([b"data: []"]), "an event is not an object"),
        (streaming([b"data: \xff"]), "a line of the stream is not UTF-8"),
        (
            StandIn({CHAT: lambda document: Answer(200, {}) if document.get("stream") else None}),
            "the content type is 'application/json', not text/event-stream",
        ),
    ],
)
def test_a_stream_that_is_not_in_order_is_red_with_what_is_wrong(smoke, does, message):
    ran = smoke(does)
    assert ran.code == 1
    assert ran.failed == ["stream"]
    assert ran.statuses["latency"] == "skip"
    assert message in ran.out
    assert f"POST {CHAT} answered 200, request id req_1" in ran.out


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Answer(404, {"detail": "Not found"}), "the answer has no error"),
        (Answer(404, {"error": {"message": "m", "type": "t"}}), "the error lacks param, code"),
        (Answer(404, "<html>", "text/html"), "the answer is not JSON"),
        (Answer(404, error("m", code="nope")), "the error's code is 'nope', not 'model_not_found'"),
        (Answer(404, error("", code="model_not_found")), "the error's message is empty"),
        (Answer(400, error("m", code="model_not_found")), "answered 400 instead of 404"),
    ],
)
def test_an_error_of_a_wrong_shape(smoke, wrong, message):
    ran = smoke(StandIn({CHAT: lambda document: wrong if "no-such" in document["model"] else None}))
    assert (ran.code, ran.failed) == (1, ["errors"])
    assert message in ran.out


def test_an_unknown_field_is_named_or_refused(smoke):
    assert smoke(StandIn(is_strict=True)).code == 0
    assert smoke(StandIn(names_ignored=False)).failed == ["errors"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"usage": None}, "the answer has no usage.prompt_tokens"),
        ({"usage": USAGE | {"total_tokens": 9}}, "the usage does not sum up: 3 + 2 is not 9"),
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 99, "total_tokens": 100}}, "max_tokens was 16"),
        ({"model": "other"}, "model is 'other', not 'tiny'"),
        ({"choices": []}, "the answer has no choices.0"),
        ({"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": ""}}]}, "is empty"),
    ],
)
def test_a_chat_answer_that_is_wrong(smoke, changes, message):
    right = StandIn().generate({"model": "tiny"}, is_chat=True).document

    def answer(document):
        is_chat = document["model"] == "tiny" and not document.get("stream") and len(document) == 4
        return Answer(200, {**right, **changes}) if is_chat else None

    ran = smoke(StandIn({CHAT: answer}))
    assert (ran.code, ran.failed) == (1, ["chat"])
    assert message in ran.out
    assert ran.statuses["stream"] == "ok"


SHOWN = "a question about an image"


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        (Answer(200, {"choices": [{"finish_reason": "stop", "message": {"content": " "}}]}), f"{SHOWN} is empty"),
        (Answer(500, error("broken")), f"{SHOWN} is answered with 500, not 200"),
        (Answer(400, error("reads only text")), f"{SHOWN} is answered with 400, not 200"),
    ],
)
def test_a_model_that_sees_is_asked_about_an_image(smoke, answered, message):
    right = StandIn().generate({"model": "tiny"}, is_chat=True).document

    def images_of(document):
        content = document.get("messages", [{}])[0].get("content", "")
        return [part["image_url"]["url"] for part in content if isinstance(part, dict) and "image_url" in part]

    def answer(document, seen):
        for url in images_of(document):
            try:
                Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).load()
            except UnidentifiedImageError:
                return Answer(400, error("no image", param="messages"))
            return seen
        return None

    ran = smoke(StandIn({CHAT: lambda document: answer(document, Answer(200, right))}, sees=True))
    assert (ran.code, ran.statuses["seeing"]) == (0, "ok"), ran.out
    assert '"Hello" of a red square' in ran.out
    wrong = answered if answered.status != 200 else Answer(200, right | answered.document)
    ran = smoke(StandIn({CHAT: lambda document: answer(document, wrong)}, sees=True))
    assert (ran.code, ran.failed) == (1, ["seeing"])
    assert message in ran.out


def completing(logprobs) -> StandIn:
    right = StandIn().generate({"model": "tiny"}, is_chat=False).document
    choices = [{**right["choices"][0], "logprobs": logprobs}]

    def answer(document):
        return None if document.get("stream") else Answer(200, {**right, "choices": choices})

    return StandIn({COMPLETIONS: answer})


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        (None, "the answer has no choices.0.logprobs.tokens"),
        (LOGPROBS | {"text_offset": [0]}, "the lists of logprobs have [2, 2, 2, 1] entries"),
        (LOGPROBS | {"token_logprobs": [0.5, -1]}, "not a number that is at most 0"),
    ],
)
def test_log_probabilities_that_are_asked_for_must_be_there_and_in_order(smoke, logprobs, message):
    ran = smoke(completing(logprobs))
    assert (ran.code, ran.failed) == (1, ["completions"])
    assert message in ran.out


def test_log_probabilities_may_be_refused_by_name_and_not_otherwise(smoke):
    def refuse(code):
        refusal = Answer(400, error("no", param="logprobs", code=code))
        return StandIn({COMPLETIONS: lambda document: refusal if "logprobs" in document else None})

    ran = smoke(refuse("unsupported_parameter"))
    assert ran.code == 0
    assert "logprobs are refused by name" in ran.out
    assert smoke(refuse("invalid_value")).failed == ["completions"]


def test_a_model_without_a_chat_template_is_tested_with_completions(smoke):
    refusal = Answer(400, error("The model 'tiny' has no chat template, so it takes no messages.", param="messages"))

    def answer(document):
        is_right = document["model"] == "tiny" and len(document) == 4
        return refusal if is_right else None

    ran = smoke(StandIn({CHAT: answer}))
    assert ran.code == 0
    assert ran.statuses["chat"] == "skip"
    assert ran.statuses["stream"] == ran.statuses["latency"] == "ok"


def test_a_silent_server_is_not_waited_for_beyond_the_request_timeout(smoke):
    has_ended = threading.Event()

    def answer(document):
        has_ended.wait(60)

    try:
        ran = smoke(StandIn({"/v1/models": answer}), "--request-timeout", "1")
    finally:
        has_ended.set()
    # A machine that is busy elsewhere may keep another check waiting as well.
    assert (ran.code, "models" in ran.failed) == (1, True)
    assert "GET /v1/models: no answer within 1 s" in ran.out


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"", "the connection was closed before an answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", "the connection broke off in the middle of the answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "no HTTP answer: RemoteProtocolError illegal status line"),
    ],
)
def test_a_server_that_does_not_answer_in_http_is_named_by_what_it_does(sent, cause):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_once, args=(listener, sent))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, Credentials(), request_timeout_s=5) as client, pytest.raises(Unreachable, match=cause):
            client.get("/health")
        thread.join()


def answer_once(listener: socket.socket, sent: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(sent)
