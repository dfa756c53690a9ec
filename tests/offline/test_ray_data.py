"""Answers in a pipeline of Ray Data: in the environment that has Ray, apart from what is not of Ray."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
import yaml

from service.engine.request import FinishReason
from service.errors import EngineStopped
from service.offline import ray_data
from service.offline.ray_data import AnswerBodies
from tests.api.scripted_engine import MODEL, Service, tokens
from tests.offline.test_batch import EchoApi
from tests.ray_program import ROOT, run_ray_program

NUM_ROWS = 500


def body(prompt, **fields):
    return json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 3} | fields)


@pytest.fixture
def answer_bodies(monkeypatch):
    """Return what answers bodies by an app."""
    made = []

    def make(api):
        monkeypatch.setattr(ray_data, "load_model", lambda settings: (Mock(), None))
        monkeypatch.setattr(ray_data, "api_of", lambda settings, loaded, metrics: api)
        made.append(AnswerBodies("/v1/completions", settings={"max_concurrent_requests": 8}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_each_row_has_the_answer_to_its_own_body(answer_bodies):
    api = EchoApi()
    completions = answer_bodies(api)
    for prompts in ([f"n{i}" for i in range(50)], ["a", "a", "b"]):
        answered = completions({"body": np.array([body(prompt) for prompt in prompts], object), "kept": prompts})
        assert [json.loads(answer)["choices"][0]["text"] for answer in answered["answer"]] == prompts
        assert list(answered["status_code"]) == [200] * len(prompts)
        assert answered["kept"] == prompts
    assert api.most_at_once == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no JSON", "The body is not a JSON object."),
        ("[1]", "The body is not a JSON object."),
        ('{"a": NaN}', "The body is not a JSON object."),
        ("{}", "Missing required parameter: 'model'."),
        (body("a", temperature=9), "temperature"),
    ],
)
def test_what_the_api_refuses_is_a_row_and_the_others_are_answered(answer_bodies, text, said):
    completions = answer_bodies(Service([*tokens("Hello"), FinishReason.STOP]).app)
    answered = completions({"body": np.array([text, body("Once").encode()], object)})
    assert list(answered["status_code"]) == [400, 200]
    assert said in json.loads(answered["answer"][0])["error"]["message"]


def test_a_body_that_is_no_text_is_refused_with_the_remedy(answer_bodies):
    with pytest.raises(TypeError, match=r"column 'body' has values of type dict.*json\.dumps"):
        answer_bodies(EchoApi())({"body": np.array([{"prompt": "a"}], object)})


def test_an_engine_that_fails_fails_the_batch(answer_bodies):
    with pytest.raises(EngineStopped):
        answer_bodies(EchoApi(fails_at="n3"))({"body": np.array([body(f"n{i}") for i in range(5)], object)})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_row_is_answered_once_though_a_node_is_lost():
    found = run_ray_program("tests.offline.ray_data_program", "lost_node", str(NUM_ROWS))
    assert found["answered_by_lost"] > 0
    rows = found["rows"]
    assert sorted(row["number"] for row in rows) == list(range(NUM_ROWS + 2))
    assert {row["number"]: row["status_code"] for row in rows if row["status_code"] != 200} == dict.fromkeys(
        range(NUM_ROWS, NUM_ROWS + 2), 400
    )
    assert all(json.loads(row["answer"])["usage"]["completion_tokens"] for row in rows if row["number"] < NUM_ROWS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rays_own_processor_asks_a_server(demo_service):
    found = run_ray_program("tests.offline.ray_data_program", "http", f"{demo_service.url}/v1/completions")
    assert len(found["texts"]) == 50
    assert all(found["texts"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_program_of_the_job_answers_a_file(tmp_path):
    (tmp_path / "requests.jsonl").write_text("".join(body(f"{i}", model="levserve-demo") + "\n" for i in range(20)))
    documents = yaml.safe_load_all((ROOT / "deploy/ray/ray_job.yaml").read_text())
    [program] = [document["data"]["answers.py"] for document in documents if document["kind"] == "ConfigMap"]
    here = {
        "gs://my-project/": f"{tmp_path}/",
        '"model_uri": "gs://my-project-models/my-8b"': '"model_name": "levserve-demo"',
        "/v1/chat/completions": "/v1/completions",
        "max_size=4": "max_size=1",
        "num_gpus=1": "num_cpus=1",
    }
    for given, local in here.items():
        assert given in program
        program = program.replace(given, local)
    (tmp_path / "answers.py").write_text(program + "print(0)\n")
    run_ray_program("answers", PYTHONPATH=f"{ROOT}:{tmp_path}")
    rows = [json.loads(row) for path in (tmp_path / "answers").iterdir() for row in path.read_text().splitlines()]
    assert sorted(json.loads(row["body"])["prompt"] for row in rows) == sorted(map(str, range(20)))
    assert {row["status_code"] for row in rows} == {200}
