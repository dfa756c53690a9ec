"""A service of several models as its users have it: a process, a folder or a bucket, and requests for all of them."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from tests.process import running_service
from tests.served import ADMIN, DEMO, SMALL, demo_tensors

pytestmark = pytest.mark.slow

NAMES = ("a", "b", "c", "d")
PROMPTS = ("The sky is", "One, two,", "A model", "Once", "Yes")
NUM_SWAPS = 100


def write_models(folder, names):
    """Write copies of the demo model whose rows of the embedding have other tokens, so that each answers otherwise."""
    for shift, name in enumerate(names):
        shutil.copytree(DEMO, folder / name)
        tensors = demo_tensors()
        embedding = tensors["model.embed_tokens.weight"]
        tensors["model.embed_tokens.weight"] = np.ascontiguousarray(np.roll(embedding, shift, axis=0))
        save_file(tensors, folder / name / "model.safetensors")
    return folder


def complete(service, model, prompt, max_tokens=6):
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 1}
    return httpx.post(f"{service.url}/v1/completions", json=body, timeout=120)


def text(service, model, prompt):
    answer = complete(service, model, prompt)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def reports(service):
    return httpx.get(f"{service.url}/admin/models", headers=ADMIN, timeout=30).json()["data"]


def resources(service):
    """Resident bytes, threads and file handles once no model is loading or leaving."""
    while any(report["state"] not in ("ready", "available") for report in reports(service)):
        time.sleep(0.05)
    time.sleep(1)
    process = psutil.Process(service.process.pid)
    return process.memory_info().rss, process.num_threads(), process.num_fds()


@pytest.fixture
def settings(one_sequence):
    return {
        "local_model_cache": one_sequence.cache,
        "bundle_uri": one_sequence.shared,
        "admin_api_key": "operator",
        **SMALL,
    }


def test_a_hundred_swaps_among_four_models_answer_as_single_models_do_and_lose_nothing(tmp_path, settings):
    models = write_models(tmp_path / "models", NAMES)
    expected = {}
    for name in NAMES:
        with running_service(**settings, model_uri=models / name, model_name=name) as service:
            expected |= {(name, prompt): text(service, name, prompt) for prompt in PROMPTS}
    assert len(set(expected.values())) > len(PROMPTS)

    number, measured = 0, []
    with (
        running_service(**settings, catalogue_uri=models, max_cached_models=2) as service,
        ThreadPoolExecutor(4) as pool,
    ):
        while len(measured) < 2:
            if sum(report["starts"] for report in reports(service)) >= (10, NUM_SWAPS)[len(measured)]:
                measured.append(resources(service))
                continue
            prompt = PROMPTS[number % len(PROMPTS)]
            asked = [NAMES[(number + offset) % len(NAMES)] for offset in range(len(NAMES))]
            answers = pool.map(lambda name, p=prompt: text(service, name, p), asked)
            assert list(answers) == [expected[name, prompt] for name in asked]
            number += 1
        (tenth_bytes, *tenth), (last_bytes, *last) = measured
        assert last_bytes <= 1.05 * tenth_bytes
        assert last <= tenth  # threads, file handles
        assert sum(report["state"] == "ready" for report in reports(service)) <= 2
        assert not any(report["open_requests"] + report["waiting_requests"] for report in reports(service))
        lines = httpx.get(f"{service.url}/metrics").text.splitlines()
        assert {line.rsplit(" ", 1)[1] for line in lines if line.startswith("levserve_kv_cache_usage_perc{")} == {"0.0"}


def test_a_checkpoint_that_vanishes_or_goes_bad_after_the_listing_fails_for_those_who_ask_for_it_alone(
    gcs_bucket, settings, tmp_path
):
    for name in ("good", "vanishing", "bad"):
        gcs_bucket.upload_directory(DEMO, name)
    bucket = {"gcs_bucket": gcs_bucket.name, "storage_emulator_host": gcs_bucket.endpoint, "catalogue_ttl": 3600}
    with running_service(**settings | bucket | {"local_model_cache": tmp_path}, max_cached_models=2) as service:
        expected = text(service, "good", PROMPTS[0])
        assert [model["id"] for model in httpx.get(f"{service.url}/v1/models").json()["data"]] == [
            "bad",
            "good",
            "vanishing",
        ]
        for file in DEMO.rglob("*"):
            if file.is_file():
                gcs_bucket.delete(f"vanishing/{file.relative_to(DEMO).as_posix()}")
        weights = (DEMO / "model.safetensors").read_bytes()
        gcs_bucket.upload("bad/model.safetensors", weights[: len(weights) // 2])
        stop, others = threading.Event(), []

        def ask_the_good_one():
            while not stop.is_set():
                others.append(text(service, "good", PROMPTS[0]))

        thread = threading.Thread(target=ask_the_good_one)
        thread.start()
        with ThreadPoolExecutor(6) as pool:
            asked = ["vanishing", "bad"] * 3
            failed = list(pool.map(lambda name: complete(service, name, PROMPTS[0]), asked))
        stop.set()
        thread.join()
        assert set(others) == {expected}
        assert {answer.status_code for answer in failed} == {503}
        for name, answer in zip(asked, failed, strict=True):
            assert answer.json()["error"]["code"] == "model_load_failed", answer.text
            assert name in answer.json()["error"]["message"]
            assert gcs_bucket.name not in answer.text
        failures = {report["id"]: report["failure"] for report in reports(service)}
        assert (failures["good"], None in (failures["bad"], failures["vanishing"])) == (None, False)
        # Once it is whole again it is served, at the generation that it has then.
        gcs_bucket.upload("bad/model.safetensors", weights)
        httpx.post(f"{service.url}/admin/load/bad", headers=ADMIN).raise_for_status()
        assert text(service, "bad", PROMPTS[0]) == expected


def test_a_thousand_models_are_listed_once_and_no_request_is_made_for_any(gcs_bucket, settings, tmp_path):
    for number in range(1000):
        gcs_bucket.upload(f"m{number}/config.json", b"{}")
        gcs_bucket.upload(f"m{number}/model.safetensors", b"none")
    bucket = {"gcs_bucket": gcs_bucket.name, "storage_emulator_host": gcs_bucket.endpoint, "catalogue_ttl": 3600}
    gcs_bucket.faults([])
    with running_service(**settings | bucket | {"local_model_cache": tmp_path}) as service:
        for _ in range(3):
            assert len(httpx.get(f"{service.url}/v1/models").json()["data"]) == 1000
        assert complete(service, "m1000", "a").json()["error"]["code"] == "model_not_found"
        assert gcs_bucket.media_requests() == []
        listings = gcs_bucket.requests("/o")
        assert 1 <= len(listings) <= 3, listings  # pages of one listing
