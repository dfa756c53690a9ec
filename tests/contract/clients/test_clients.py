"""Clients of other projects against the demo process: each is a small program that goes through the same scenarios."""

import json
import subprocess
import time
from pathlib import Path

import httpx
import jsonschema
import pytest

from tests.contract.installation import NODE, node_folder_of, python_of
from tests.process import running_service

HERE = Path(__file__).parent
MODEL = "levserve-demo"
KEY = "secret"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": CITY}}
ABORTED = 'levserve_request_success_total{finished_reason="abort"'
DEADLINE_S = 60

# Folder of the program, and what it is to use of the API, if it has a choice.
CLIENTS = ("openai_node", "ai_sdk", "langchain", "litellm", "instructor", "agents chat", "agents responses")
# Names of error classes in clients that do not take over those of the official one.
OWN_ERRORS = {"ai_sdk": dict.fromkeys(("key", "model", "field"), "AI_APICallError")}
LOSES_PARAM = {("litellm", "model")}
ERRORS = {"key": "AuthenticationError", "model": "NotFoundError", "field": "BadRequestError"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def keyed_service(cold_start):
    with running_service(api_key=KEY) as service:
        yield service


@pytest.fixture(scope="module", params=CLIENTS)
def run(request, keyed_service, demo_answers):
    """What a client got in each scenario, and how many requests the service stopped when the client left."""
    name, _, variant = request.param.partition(" ")
    command = command_of(HERE / name)
    [known] = [pair for pair in demo_answers if pair["question"] == "What is the capital of France?"]
    given = {
        "baseURL": f"{keyed_service.url}/v1",
        "apiKey": KEY,
        "model": MODEL,
        "question": known["question"],
        "longQuestion": "Tell me a story.",
        "tool": WEATHER,
        "arrived": '{"degrees": 7}',
        "variant": variant,
    }
    num_aborted, results = 0, {}
    before, _ = counts_of(keyed_service)
    with subprocess.Popen(
        [*command, json.dumps(given)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if line.strip() == "aborted":  # it goes on once the service has noticed
                num_aborted = wait_for_abort(keyed_service, before)
                process.stdin.write("\n")
                process.stdin.flush()
            elif line.startswith("{"):
                results = json.loads(line)
        printed = process.stderr.read()
    assert results, printed
    return {"name": name, "answer": known["answer"], "num_aborted": num_aborted, **results}


def command_of(folder: Path) -> list[str]:
    if (folder / "package.json").exists():
        return [str(NODE), str(node_folder_of(folder) / "program.mjs")]
    return [python_of(folder / "program.py"), str(folder / "program.py")]


def counts_of(service) -> tuple[float, float]:
    """How many sequences the service has aborted, and how many it runs."""
    lines = httpx.get(f"{service.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text.splitlines()
    [running] = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("levserve_num_requests_running{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(ABORTED)), running


def wait_for_abort(service, before: float) -> float:
    """Return how many sequences were aborted since then, once none runs any more."""
    give_up_at = time.monotonic() + DEADLINE_S
    while True:
        aborted, running = counts_of(service)
        if (aborted > before and not running) or time.monotonic() > give_up_at:
            return aborted - before
        time.sleep(0.02)


def test_an_answer_has_its_text_reason_and_usage(run):
    assert run["chat"]["text"] == run["answer"]
    assert run["chat"]["reason"] == "stop"
    assert 3 < run["chat"]["tokens"] < 30


def test_a_stream_has_the_text_in_pieces(run):
    assert "".join(run["stream"]["pieces"]) == run["answer"]
    assert sum(bool(piece) for piece in run["stream"]["pieces"]) > 1


def test_a_tool_is_called_and_its_result_is_answered(run):
    assert run["tools"]["name"] == "get_weather"
    jsonschema.validate(run["tools"]["arguments"], CITY)
    assert isinstance(run["tools"]["text"], str)


def test_a_structured_answer_is_an_object_of_its_class(run):
    assert set(run["structured"]) == {"kind", "population"}
    assert run["structured"]["kind"] in {"city", "village"}
    assert run["structured"]["population"] in {1, 100}


def test_a_client_that_leaves_stops_its_sequence(run):
    assert run["abort"] == {"numPieces": 3}
    assert run["num_aborted"] == 1


def test_errors_have_their_classes_statuses_and_fields(run):
    expected = OWN_ERRORS.get(run["name"], ERRORS)
    assert {name: error["kind"] for name, error in run["errors"].items()} == expected
    assert {name: error["status"] for name, error in run["errors"].items()} == {"key": 401, "model": 404, "field": 400}
    expected = {"key": None, "model": "model", "field": "temperature"}
    for name, error in run["errors"].items():
        assert error["param"] == (None if (run["name"], name) in LOSES_PARAM else expected[name])
