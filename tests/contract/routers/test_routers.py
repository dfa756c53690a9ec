"""Routers of other projects before a service: what a request gets through them is what it gets without."""

import json
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.contract.installation import python_of
from tests.contract.scripted_model import MODEL
from tests.contract.scripts import KEY, WEATHER
from tests.encoder import tiny
from tests.encoder.test_scores import write_reranker
from tests.process import running_service

HERE = Path(__file__).parent
START_TIMEOUT_S = 120
HEADERS = {"Authorization": f"Bearer {KEY}"}
QUESTION = {"role": "user", "content": "How is it in Ulm? (script weather)"}
COUNTED = {"role": "user", "content": "Which turn? (script count)"}
CITED = {"role": "tool", "tool_call_id": "call_1", "content": '{"degrees": 7}'}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
CHAT = {"model": MODEL, "messages": [QUESTION], "tools": [WEATHER]}
RESPONSES_TOOL = {"type": "function", "strict": False, **WEATHER["function"]}
RESPONSE = {"model": MODEL, "input": "Which turn? (script count)"}
CHATS = "/v1/chat/completions"
REQUESTS = {
    "chat": (CHATS, {"model": MODEL, "messages": [COUNTED], "max_tokens": 20}),
    "chat with options": (
        CHATS,
        {"model": MODEL, "messages": [COUNTED], "temperature": 0.5, "seed": 1, "logprobs": True},
    ),
    "call": (CHATS, CHAT),
    "result": (
        CHATS,
        CHAT | {"messages": [QUESTION, {"role": "assistant", "content": None, "tool_calls": [CALL]}, CITED]},
    ),
    "required call": (CHATS, CHAT | {"tool_choice": "required", "temperature": 0}),
    "streamed chat": (CHATS, {"model": MODEL, "messages": [COUNTED], "stream": True}),
    "streamed call": (CHATS, CHAT | {"stream": True, "stream_options": {"include_usage": True}}),
    "completion": ("/v1/completions", {"model": MODEL, "prompt": "Once", "max_tokens": 4}),
    "streamed completion": ("/v1/completions", {"model": MODEL, "prompt": "Once", "max_tokens": 4, "stream": True}),
    "response": ("/v1/responses", RESPONSE),
    "streamed response": ("/v1/responses", RESPONSE | {"stream": True}),
    "response with a call": (
        "/v1/responses",
        {"model": MODEL, "input": QUESTION["content"], "tools": [RESPONSES_TOOL], "store": False},
    ),
}
VECTORS = {
    "embedding": ("/v1/embeddings", {"model": "vectors", "input": "cat"}),
    "embeddings": ("/v1/embeddings", {"model": "vectors", "input": ["cat", "dog"]}),
}
RANKS = {"rerank": ("/v1/rerank", {"model": "ranks", "query": "cat", "documents": ["dog", "the cat"]})}
# What an answer has of its own time.
OWN = ("id", "created", "created_at", "completed_at", "system_fingerprint", "item_id", "call_id", "obfuscation")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def vllm_router(worker, port):
    python = python_of(HERE / "vllm_router" / "program.py")
    command = [python, "-m", "vllm_router.launch_router", "--policy", "cache_aware", "--api-key", KEY]
    return [*command, "--worker-urls", worker, "--port", str(port), "--prometheus-port", str(free_port())]


def sglang_router(worker, port):
    python = python_of(HERE / "sglang_router" / "program.py")
    command = [python, "-m", "sglang_router.launch_router", "--policy", "cache_aware"]
    return [*command, "--worker-urls", worker, "--port", str(port), "--prometheus-port", str(free_port())]


def smg(worker, port):
    program = Path(python_of(HERE / "smg" / "program.py")).with_name("smg")
    command = [str(program), "launch", "--policy", "cache_aware", "--api-key", KEY]
    return [*command, "--worker-urls", worker, "--port", str(port), "--prometheus-port", str(free_port())]


@contextmanager
def running_router(command_of, worker):
    """Start a router and wait until it has the worker; yields its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*command_of(worker, port), "--host", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            give_up_at = time.monotonic() + START_TIMEOUT_S
            while not is_ready(url):
                assert process.poll() is None, f"{command} ended with {process.returncode}"
                assert time.monotonic() < give_up_at, f"{command} is not ready"
                time.sleep(0.1)
            yield url
        finally:
            process.kill()


def is_ready(url):
    try:
        return httpx.get(f"{url}/readiness", headers=HEADERS).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def services(tmp_path_factory, scripted_service):
    """The addresses of services by what they answer: texts, vectors, ranks."""
    vectors, ranks = tmp_path_factory.mktemp("vectors"), tmp_path_factory.mktemp("ranks")
    tiny.write_checkpoint(vectors)
    write_reranker(ranks, "bert")
    with (
        running_service(model_uri=vectors, model_name="vectors", api_key=KEY) as of_vectors,
        running_service(model_uri=ranks, model_name="ranks", api_key=KEY) as of_ranks,
    ):
        yield {"texts": scripted_service.url, "vectors": of_vectors.url, "ranks": of_ranks.url}


@pytest.fixture(scope="module", params=(vllm_router, sglang_router, smg), ids=lambda router: router.__name__)
def router(request):
    return request.param


def answers_of(url, requests):
    found = {}
    with httpx.Client(base_url=url, headers=HEADERS, timeout=60) as client:
        for name, (path, body) in requests.items():
            answer = client.post(path, json=body)
            found[name] = (answer.status_code, contents_of(answer.text))
    return found


def contents_of(text):
    """Return what an answer says, as a whole or in events, without what differs between two answers."""
    if text.startswith(("data:", "event:")):
        data = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
        return [comparable(json.loads(item)) if item != "[DONE]" else item for item in data]
    return comparable(json.loads(text))


def comparable(value):
    if isinstance(value, dict):
        if "results" in value:  # routers write rankings in their own shape
            return [result["index"] for result in value["results"]]
        kept = {name: comparable(item) for name, item in value.items() if name not in OWN}
        return {name: item for name, item in kept.items() if name != "prompt_tokens_details"}
    return [comparable(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("kind", "requests"), [("texts", REQUESTS), ("vectors", VECTORS), ("ranks", RANKS)])
def test_answers_through_a_router_are_those_without_one(router, services, kind, requests):
    direct = answers_of(services[kind], requests)
    assert {name: status for name, (status, _) in direct.items()} == dict.fromkeys(requests, 200)
    with running_router(router, services[kind]) as url:
        routed = answers_of(url, requests)
    assert {name: status for name, (status, _) in routed.items()} == dict.fromkeys(requests, 200), routed
    for name in requests:
        assert routed[name] == direct[name], name
