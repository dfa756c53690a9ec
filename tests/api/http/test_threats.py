"""Threats that a request can carry, each sent through a socket to the app that a process serves."""

import json
import logging

import pytest

from service.observability.logs import CloudJsonFormatter, Origin, TerminalFormatter
from service.observability.metrics import Metrics
from service.server.connection import Connection
from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MAX_MODEL_LEN, MODEL, TOKENIZER, Service
from tests.server.early_app import early_app
from tests.server.test_early import StartingService
from tests.sockets import connected, read_to_end, refusal, served

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = "application/json"
HI = [{"role": "user", "content": "hi"}]
HUGE = 10**9
NESTED = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}
REACHES_OUT = "{{ cycler.__init__.__globals__['__name__'] }}"
HOSTILE = ChatTemplate(f"{{% if messages[0].content == 'attack' %}}{REACHES_OUT}{{% endif %}}hi", {})


@pytest.fixture(scope="module")
def service():
    return Service(api_keys=("sk-one", "sk-two"))


@pytest.fixture(scope="module")
def server(service):
    with served(service.app, Connection) as server:
        yield server


def exchange(server, path, content=b"", *, method="POST", key="sk-one", kind=JSON, headers=()):
    """Send one request and return its status, its head and its body as text."""
    lines = [f"{method} {path} HTTP/1.1", "Host: a", "Connection: close", *headers]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [f"Content-Type: {kind}", f"Content-Length: {len(content)}"] if method == "POST" else []
    with connected(server) as client:
        client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + content)
        received = b""
        while more := client.recv(65536):
            received += more
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), body.decode()


def refusal_of(server, path, content, **options):
    status, _, body = exchange(server, path, content, **options)
    return status, json.loads(body)["error"]["param"]


def chat(**fields):
    return json.dumps({"model": MODEL, "messages": HI, "max_tokens": 5} | fields).encode()


def completion(**fields):
    return json.dumps({"model": MODEL, "prompt": "Once", "max_tokens": 5} | fields).encode()


def constrained(schema):
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})


def test_t2_bodies_are_counted_as_they_arrive_and_not_decompressed(server):
    chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
    framing = ["Transfer-Encoding: chunked", f"Content-Type: {JSON}"]
    head = "\r\n".join([f"POST {COMPLETIONS} HTTP/1.1", "Host: a", "Authorization: Bearer sk-one", *framing, "", ""])
    with connected(server) as client:
        client.sendall(head.encode() + chunk * 4 + b"1\r\n \r\n")
        assert refusal(read_to_end(client))[0] == 413
    assert exchange(server, COMPLETIONS, b"\x1f\x8b", headers=["Content-Encoding: gzip"])[0] == 415


T4 = {
    "deep": b"[" * 200_000,
    "digits": completion().replace(b"5", b"9" * 10_000),
    "fields": chat(metadata={str(i): "" for i in range(200_000)}),
    "NaN": completion(temperature=float("nan")),
    "infinity": completion().replace(b"5", b"1e999"),
    "twice": completion().replace(b'"max_tokens": 5', b'"max_tokens": 5, "max_tokens": 6'),
    "surrogate": completion(prompt="\ud800"),
    "UTF-16": completion().decode().encode("utf-16"),
}


@pytest.mark.parametrize("bomb", T4)
def test_t4_json_bombs(server, bomb):
    assert exchange(server, COMPLETIONS, T4[bomb])[0] == 400


@pytest.mark.parametrize("value", [-2, 2**63, 1.5, True, "1"])
@pytest.mark.parametrize("field", ["n", "max_tokens", "top_logprobs", "min_tokens"])
def test_t5_numbers_out_of_range(server, field, value):
    assert refusal_of(server, CHATS, chat(logprobs=True, **{field: value})) == (400, field)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHATS, chat(n=HUGE), "n"),
        (COMPLETIONS, completion(prompt=["a"] * 65), "prompt"),
        (COMPLETIONS, completion(prompt=["a"] * 33, n=2), "n"),
        (COMPLETIONS, completion(best_of=HUGE), "best_of"),
        (CHATS, chat(logprobs=True, top_logprobs=HUGE), "top_logprobs"),
        (CHATS, chat(logit_bias={str(i): 1 for i in range(1025)}), "logit_bias"),
        (CHATS, chat(stop=["a"] * 17), "stop"),
        (CHATS, chat(messages=HI * 17_000), "messages[16383]"),
    ],
)
def test_t6_fan_out(server, service, path, body, param):
    num_streams = len(service.engine.streams)
    assert refusal_of(server, path, body) == (400, param)
    assert len(service.engine.streams) == num_streams


@pytest.mark.parametrize("text", ["a", " ", "😀", "ก"])
def test_t7_prompts_that_cannot_fit_are_not_encoded(server, text):
    body = json.dumps({"model": MODEL, "prompt": text * 500_000}, ensure_ascii=False).encode()
    status, _, answer = exchange(server, COMPLETIONS, body)
    assert (status, json.loads(answer)["error"]["code"]) == (400, "context_length_exceeded")
    assert "at least" in answer  # an encoded text has a length that is known


@pytest.mark.parametrize("ids", [[-1], [TOKENIZER.vocab_size], [2**32], [[[1]]], [1, "a"], [1, None]])
def test_t8_token_ids_that_do_not_exist(server, ids):
    status, param = refusal_of(server, COMPLETIONS, completion(prompt=ids))
    assert (status, param.split("[")[0]) == (400, "prompt")


@pytest.mark.parametrize(
    "body",
    [
        constrained({"enum": ["x" * 1000 + str(i) for i in range(1000)]}),
        constrained(NESTED),
        constrained({"type": "something"}),
        chat(structured_outputs={"regex": "(" * 5000}),
        chat(structured_outputs={"choice": ["a"] * 1001}),
    ],
)
def test_t9_schemas_and_patterns(server, body):
    assert exchange(server, CHATS, body)[0] == 400
    assert exchange(server, CHATS, chat())[0] == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"chat_template": "{{ 1 }}"}, "chat_template")],
)
def test_t11_templates(server, fields, param):
    assert refusal_of(server, CHATS, chat(**fields)) == (400, param)


@pytest.mark.parametrize("name", ["tokenize", "__class__", "messages"])
def test_t11_variables_that_the_template_does_not_read_are_not_passed_to_it(server, name):
    status, head, _ = exchange(server, CHATS, chat(chat_template_kwargs={name: True}))
    assert status == 200
    assert f"x-levserve-ignored: chat_template_kwargs.{name}\r\n" in head


def test_t12_a_checkpoints_template_that_reaches_out_ends_its_request_alone():
    with served(Service(model={"chat_template": HOSTILE}).app, Connection) as server:
        status, _, body = exchange(server, CHATS, chat(messages=[{"role": "user", "content": "attack"}]))
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_value")
        assert exchange(server, CHATS, chat())[0] == 200


@pytest.mark.parametrize(
    "path", ["/v1/models", "//v1/models", "/V1/models", "/v1/models/", "/x/../v1/models", "/metrics"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "TRACE"])
def test_t20_nothing_opens_without_a_key(server, method, path):
    assert exchange(server, path, method=method, key=None)[0] == 401


@pytest.mark.parametrize("key", ["sk-on", "sk-onee", "SK-ONE", "\xff\xfe", "sk-one,sk-two", "a" * 30_000])
def test_t21_odd_keys(server, key):
    assert exchange(server, "/v1/models", method="GET", key=key)[0] == 401
    assert exchange(server, "/v1/models", method="GET", headers=["Authorization: Bearer sk-one"])[0] == 401


OPERATORS = ("/admin/stats", "/stats", "/admin/models", "/admin/load/a", "/admin/unload/a")


def test_t22_no_operators_route_without_its_key():
    with served(early_app(StartingService(), Metrics()), Connection) as server:
        assert {exchange(server, path, method=m)[0] for path in OPERATORS for m in ("GET", "POST")} == {404}


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/debug", "/start_profile", "/v1/load_lora_adapter", "/sleep"])
def test_t22_no_route_for_developers(server, path):
    assert {exchange(server, path, method=method)[0] for method in ("GET", "POST")} == {404}


def test_t23_each_key_has_a_prefix_cache_of_its_own(server, service):
    salts = []
    for key in ("sk-one", "sk-two", "sk-one"):
        assert exchange(server, COMPLETIONS, completion(), key=key)[0] == 200
        salts.append(service.engine.last.request.cache_salt)
    assert salts[0] == salts[2] != salts[1]


def test_t24_a_client_cannot_write_a_log_line(server, caplog):
    caplog.set_level(logging.INFO)
    evil = 'a\n{"severity": "CRITICAL"}\x1b[31m'
    headers = ["X-Request-ID: a\x1b[31m", "User-Agent: \x85", "X-Cloud-Trace-Context: \x85/1"]
    assert exchange(server, COMPLETIONS, completion(user=evil), headers=headers)[0] == 200
    assert exchange(server, COMPLETIONS, completion(model=evil))[0] == 404
    assert exchange(server, "/v1/%0A%1B%5B31mCRITICAL", method="GET")[0] == 404
    records = [record for record in caplog.records if record.name.startswith("service")]
    assert len(records) == 3
    for formatter in (CloudJsonFormatter(Origin()), TerminalFormatter()):
        lines = [formatter.format(record) for record in records]
        assert [line for line in lines if not line.isprintable()] == []


def test_t25_a_fault_of_ours_shows_no_detail():
    service = Service()
    service.engine.refusal = RuntimeError("canary at 0x7f00 in /srv/secret.py")
    with served(service.app, Connection) as server:
        status, _, body = exchange(server, COMPLETIONS, completion())
    assert status == 500
    assert not [word for word in ("canary", "0x7f00", "/srv", "Traceback", "RuntimeError") if word in body]


def test_t26_pages_of_other_origins(server):
    origin = ["Origin: https://evil.example"]
    assert exchange(server, CHATS, chat(), kind="text/plain", headers=origin)[0] == 415
    for method in ("GET", "OPTIONS", "POST"):
        _, head, _ = exchange(server, CHATS, chat() if method == "POST" else b"", method=method, headers=origin)
        assert "access-control-" not in head


def test_a_request_of_the_whole_context_is_still_answered(server):
    assert exchange(server, COMPLETIONS, completion(prompt=[5] * (MAX_MODEL_LEN - 5)))[0] == 200
