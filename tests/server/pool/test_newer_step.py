"""A service that follows a Levanter run: a newer step is loaded beside the one that answers, and no request is lost."""

import itertools
import json
import shutil
import threading
import time

import httpx
import numpy as np
import pytest

from tests.levanter_run import save_step
from tests.process import running_service
from tests.served import ADMIN, DEMO, SMALL, demo_tensors

pytestmark = pytest.mark.slow

TIMEOUT_S = 120
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def write_step(run, step, shift, temporary):
    """Write a step as a whole: elsewhere first, for a listing never shows half of it."""
    tensors = {name: tensor.astype(np.float32) for name, tensor in demo_tensors().items()}
    embedding = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = np.ascontiguousarray(np.roll(embedding, shift, axis=0))
    written = save_step(temporary, step, json.loads((DEMO / "config.json").read_text()), tensors)
    written.rename(run / written.name)


def complete(service):
    body = {"model": "run", "prompt": "The sky is", "max_tokens": 6, "temperature": 0}
    answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def report(service):
    [model] = httpx.get(f"{service.url}/admin/models", headers=ADMIN).json()["data"]
    return model


@pytest.mark.filterwarnings("ignore")
def test_requests_move_over_to_a_newer_step_and_none_is_dropped(tmp_path, one_sequence):
    run, described = tmp_path / "models/run", tmp_path / "models.yaml"
    run.mkdir(parents=True)
    for name in FILES:
        shutil.copy(DEMO / name, run / name)
    write_step(run, 3, 0, tmp_path / "written")
    described.write_text("models:\n  - name: run\n    pin: latest\n")
    settings = {"local_model_cache": one_sequence.cache, "bundle_uri": one_sequence.shared, **SMALL}
    catalogue = {"catalogue_uri": run.parent, "models_config": described, "catalogue_ttl": 0.2, "max_cached_models": 2}
    with running_service(**settings | catalogue, admin_api_key="operator") as service:
        older = complete(service)
        answers, failures, stop = [], [], threading.Event()

        def ask():
            while not stop.is_set():
                try:
                    answers.append(complete(service))
                except (AssertionError, httpx.HTTPError) as error:
                    failures.append(error)
                    return

        thread = threading.Thread(target=ask)
        thread.start()
        write_step(run, 4, 1, tmp_path / "written")
        deadline_s = time.monotonic() + TIMEOUT_S
        while not failures and time.monotonic() < deadline_s and (not answers or answers[-1] == older):
            time.sleep(0.05)
        stop.set()
        thread.join()
        assert failures == []
        newer = complete(service)
        assert [text for text, _ in itertools.groupby(answers)] == [older, newer]
        found = report(service)
        assert (found["uri"].rsplit("/", 1)[1], found["state"], found["failure"]) == ("step-4", "ready", None)
