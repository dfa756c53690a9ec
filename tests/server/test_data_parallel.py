"""The service with an engine on each of two devices of one processor."""

import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.process import ServiceProcess, running_service

ADMIN = {"Authorization": "Bearer operator"}
SETTINGS = {
    "xla_flags": "--xla_force_host_platform_device_count=2",
    "data_parallel": 2,
    "max_num_seqs": 2,
    "max_model_len": 128,
    "max_prefill_tokens": 64,
    "admin_api_key": "operator",
}


@pytest.fixture(scope="module")
def two_starts(tmp_path_factory, demo_answers):
    """A cold and a warm start, with what each answered, its statistics and its series."""
    cache = tmp_path_factory.mktemp("cache")
    starts = []
    for _ in range(2):
        with running_service(local_model_cache=cache, **SETTINGS) as service:
            client = service.client()

            def answer(pair, client=client):
                messages = [{"role": "user", "content": pair["question"]}]
                done = client.chat.completions.create(model="levserve-demo", messages=messages, temperature=0)
                return done.choices[0].message.content

            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(answer, demo_answers[:8]))
            if not starts:
                service.wait_for("bundle stored", timeout_s=60)
            stats = httpx.get(f"{service.url}/admin/stats", headers=ADMIN).json()
            series = httpx.get(f"{service.url}/metrics").text
            load = httpx.get(f"{service.url}/metrics/load").text
            starts.append((answers, stats, series, load, service.wait_for("planned", timeout_s=60)))
    return starts


@pytest.mark.slow
def test_answers_are_those_of_one_engine(two_starts, demo_answers):
    for answers, *_ in two_starts:
        assert answers == [pair["answer"] for pair in demo_answers[:8]]


@pytest.mark.slow
def test_one_bundle_serves_both_engines(two_starts):
    (_, cold, *_), (_, warm, *_) = two_starts
    assert cold["compiles"] > 0
    assert (cold["bundle_outcome"], warm["bundle_outcome"]) == ("miss", "hit")
    assert (warm["compiles"], warm["traces"], warm["heavy_imports"]) == (0, 0, [])
    assert cold["bundle_key"] == warm["bundle_key"]


@pytest.mark.slow
def test_series_are_of_each_engine_and_the_load_is_their_sum(two_starts):
    for _, _, series, load, planned in two_starts:
        assert planned["data_parallel"] == 2
        for engine in "01":
            assert f'levserve_num_requests_running{{engine="{engine}",model_name="levserve-demo"}} 0.0' in series
        assert 'vllm:num_requests_running{model_name="levserve-demo"} 0' in load


def crowd() -> list[dict]:
    """660 completions of many kinds, each with one right answer."""
    draw, bodies = random.Random(7), []
    for number in range(660):
        words = draw.choices(["Paris", "model", "the", "accelerator", "is", "a", "city"], k=draw.randint(1, 30))
        body = {"model": "levserve-demo", "prompt": " ".join(words), "max_tokens": draw.randint(1, 12)}
        body |= {"seed": number, "temperature": draw.choice([0, 0.5, 1, 1.5]), "return_token_ids": True}
        if draw.random() < 0.3:
            body |= {"top_p": 0.8, "top_k": 20}
        if draw.random() < 0.2:
            body |= {"n": 2}
        if draw.random() < 0.2:
            body |= {"presence_penalty": 0.7}
        if draw.random() < 0.2:
            body |= {"logit_bias": {"100": -100, "200": 3}}
        bodies.append(body)
    return bodies


@pytest.mark.slow
def test_660_requests_get_the_tokens_of_one_engine(tmp_path):
    answers = []
    for number in (1, 2):
        settings = {**SETTINGS, "data_parallel": number, "max_num_seqs": 4 // number}
        with running_service(local_model_cache=tmp_path / str(number), **settings) as service:

            def ask(body, url=service.url):
                choices = (
                    httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status().json()["choices"]
                )
                return [(choice["token_ids"], choice["finish_reason"]) for choice in choices]

            with ThreadPoolExecutor(16) as pool:
                answers.append(list(pool.map(ask, crowd())))
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_conversations_find_nearly_all_that_one_engine_has_cached(tmp_path):
    cached = []
    for number in (1, 2):
        settings = {**SETTINGS, "data_parallel": number, "max_num_seqs": 8, "max_model_len": 512}
        with running_service(local_model_cache=tmp_path / str(number), **settings) as service:

            def talk(name, url=service.url):
                prompt, total = [5 + (name * 31 + i) % 2000 for i in range(60)], 0
                for turn in range(5):
                    body = {"model": "levserve-demo", "prompt": prompt, "max_tokens": 20, "temperature": 0}
                    body |= {"ignore_eos": True, "return_token_ids": True}
                    done = httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status().json()
                    total += done["usage"]["prompt_tokens_details"]["cached_tokens"]
                    prompt = [
                        *prompt,
                        *done["choices"][0]["token_ids"],
                        *(7 + (name + turn + i) % 900 for i in range(20)),
                    ]
                return total

            with ThreadPoolExecutor(6) as pool:
                cached.append(sum(pool.map(talk, range(30))))
    one, two = cached
    assert one > 10_000
    assert two / one >= 0.95


@pytest.mark.parametrize(
    ("settings", "stated"),
    [
        ({"data_parallel": 3}, "DATA_PARALLEL: is 3 engines, and this host has 2 devices (cpu). Set it to at most 2."),
        ({"data_parallel": 2, "tensor_parallel": 2}, "is 2 engines of TENSOR_PARALLEL=2 devices each"),
        ({"data_parallel": 0}, "DATA_PARALLEL"),
        ({"data_parallel": "many"}, "DATA_PARALLEL"),
    ],
)
def test_a_number_of_engines_that_cannot_be_ends_the_start_in_one_line(settings, stated):
    with ServiceProcess(**SETTINGS | settings) as service:
        assert service.exit_code not in (0, None)
        lines = [line["message"] for line in service.log if line.get("severity") in ("ERROR", "CRITICAL")]
    assert any(stated in line for line in [*lines, *service.raw]), (lines, service.raw)
