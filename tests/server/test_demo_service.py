"""The first contact: the demo model behind a real port, through the official client."""

import concurrent.futures
import contextlib
import time
from http.client import HTTPConnection

import httpx
import pytest

from service.server.app import KEEP_ALIVE_S

MODEL = "levserve-demo"
# Source: https://cloud.google.com/load-balancing/docs/https#timeout-keepalive-backends
GOOGLE_KEEP_ALIVE_S = 600


def ask(client, question: str, **options):
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], temperature=0, **options
    )


def metric(service, name: str) -> float:
    lines = httpx.get(f"{service.url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_a_connection_stays_for_longer_than_a_load_balancer_keeps_it(demo_service):
    connection = HTTPConnection("127.0.0.1", int(demo_service.url.rsplit(":", 1)[1]))
    connection.auto_open = False  # http.client would connect again
    connection.connect()
    with contextlib.closing(connection):
        for idle_s in (6, 0):  # uvicorn's own limit is 5 s
            connection.request("GET", "/health/live")
            assert connection.getresponse().read()
            time.sleep(idle_s)
    assert KEEP_ALIVE_S > GOOGLE_KEEP_ALIVE_S


def test_it_answers_what_it_was_taught_and_ends_by_itself(demo_service, demo_answers):
    for pair in demo_answers:
        choice = ask(demo_service.client(), pair["question"]).choices[0]
        assert (choice.message.content, choice.finish_reason) == (pair["answer"], "stop")


def test_a_stream_says_the_same_in_pieces(demo_service, demo_answers):
    pair = max(demo_answers, key=lambda p: len(p["answer"]))
    stream = ask(demo_service.client(), pair["question"], stream=True, stream_options={"include_usage": True})
    *chunks, last = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == pair["answer"]
    assert sum(1 for piece in pieces if piece) > 5
    assert last.usage.completion_tokens > 5


def test_many_at_once_get_the_answers_that_each_gets_alone(demo_service, demo_answers):
    client = demo_service.client()
    pairs = demo_answers * 3
    with concurrent.futures.ThreadPoolExecutor(len(pairs)) as pool:
        answers = list(pool.map(lambda pair: ask(client, pair["question"]).choices[0].message.content, pairs))
    assert answers == [pair["answer"] for pair in pairs]


def test_a_seed_draws_the_same_text_alone_and_in_a_crowd(demo_service):
    client = demo_service.client()

    def draw(seed: int) -> str:
        options = {"prompt": "Q", "temperature": 2, "seed": seed, "max_tokens": 24}
        return client.completions.create(model=MODEL, extra_body={"ignore_eos": True}, **options).choices[0].text

    alone = [draw(seed) for seed in range(4)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        crowd = list(pool.map(draw, list(range(4)) * 3))
    assert crowd == alone * 3
    assert len(set(alone)) == 4


def test_choices_of_one_seed_differ_and_the_first_is_the_seeds_own(demo_service):
    options = {"model": MODEL, "prompt": "Q", "temperature": 1.5, "seed": 5, "max_tokens": 12}
    client = demo_service.client()
    alone = client.completions.create(**options).choices[0].text
    texts = [choice.text for choice in client.completions.create(**options, n=4).choices]
    assert texts[0] == alone
    assert len(set(texts)) > 1


def test_logprobs_of_an_echoed_prompt_are_those_that_it_has_as_an_answer(demo_service, demo_answers):
    """What greedy decoding said of each token, the prefill says of the same tokens as a prompt, chunk by chunk."""
    client = demo_service.client()
    prompt = " ".join(pair["question"] for pair in demo_answers)
    greedy = {"model": MODEL, "temperature": 0, "logprobs": 3, "max_tokens": 40}
    extensions = {"return_token_ids": True, "ignore_eos": True}
    answer = client.completions.create(**greedy, prompt=prompt, extra_body=extensions).choices[0]
    echoed = client.completions.create(
        **greedy | {"max_tokens": 1}, prompt=answer.prompt_token_ids + answer.token_ids, echo=True
    ).choices[0]
    again = echoed.logprobs.token_logprobs[len(answer.prompt_token_ids) : -1]
    # A decode step sums attention in another order, after which a number may round to another bfloat16.
    assert again == pytest.approx(answer.logprobs.token_logprobs, abs=0.02)
    assert all(
        max(top.values()) == logprob
        for top, logprob in zip(answer.logprobs.top_logprobs, answer.logprobs.token_logprobs, strict=True)
    )


def test_a_prompts_logprobs_are_those_of_its_echo_and_only_allowed_tokens_answer(demo_service, demo_answers):
    prompt = demo_answers[0]["question"]
    options = {"model": MODEL, "prompt": prompt, "temperature": 1.5, "max_tokens": 30, "logprobs": 2, "echo": True}
    extensions = {"prompt_logprobs": 3, "allowed_token_ids": [70, 71], "return_token_ids": True, "ignore_eos": True}
    choice = demo_service.client().completions.create(**options, extra_body=extensions).choices[0]
    prompt_ids = choice.prompt_token_ids
    echoed = choice.logprobs.token_logprobs[1 : len(prompt_ids)]
    own = [place[str(i)] for place, i in zip(choice.prompt_logprobs[1:], prompt_ids[1:], strict=True)]
    assert [entry["logprob"] for entry in own] == echoed
    for place, entry in zip(choice.prompt_logprobs[1:], own, strict=True):
        likeliest = sorted(place.values(), key=lambda other: other["rank"])
        assert [other["rank"] for other in likeliest][:3] == [1, 2, 3]
        assert sorted(place.values(), key=lambda other: -other["logprob"]) == likeliest
        assert (entry in likeliest[:3]) == (len(place) == 3)
    assert set(choice.token_ids) <= {70, 71}
    assert len(choice.token_ids) == 30


def test_a_bias_and_a_stop_token_are_obeyed(demo_service):
    client = demo_service.client()
    options = {"model": MODEL, "prompt": "Q", "temperature": 0, "max_tokens": 8}
    biased = client.completions.create(**options, logit_bias={"70": 100}, extra_body={"return_token_ids": True})
    assert biased.choices[0].token_ids == [70] * 8
    stopped = client.completions.create(**options, logit_bias={"70": 100}, extra_body={"stop_token_ids": [70]})
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("", "stop")


def test_a_frequency_penalty_ends_a_repetition(demo_service):
    options = {"model": MODEL, "prompt": "Q", "temperature": 0, "max_tokens": 30}
    extensions = {"return_token_ids": True, "ignore_eos": True}
    client = demo_service.client()
    plain = client.completions.create(**options, extra_body=extensions).choices[0].token_ids
    penalized = client.completions.create(**options, frequency_penalty=2, extra_body=extensions).choices[0].token_ids
    assert len(set(penalized)) > len(set(plain))


def test_every_context_and_batch_size_was_compiled_ahead(demo_service, demo_answers):
    client = demo_service.client()
    long_prompt = " ".join(pair["question"] for pair in demo_answers) * 3
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        jobs = [pool.submit(ask, client, long_prompt[: 40 * i + 10], max_tokens=8) for i in range(20)]
        assert all(job.result().usage.completion_tokens <= 8 for job in jobs)
    assert metric(demo_service, "levserve_xla_compiles_after_ready_total") == 0


def test_a_beginning_that_was_seen_is_found_again_and_changes_nothing(demo_service):
    client = demo_service.client()
    messages = [{"role": "system", "content": "You answer briefly. " * 12}, {"role": "user", "content": "Who are you?"}]
    answers = [client.chat.completions.create(model=MODEL, messages=messages, temperature=0) for _ in range(2)]
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in answers]
    assert cached[0] < 16 < answers[1].usage.prompt_tokens - 16 <= cached[1]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_a_client_that_leaves_frees_what_it_held(demo_service):
    client = demo_service.client()
    aborted = metric(demo_service, 'levserve_request_success_total{finished_reason="abort"')
    for _ in range(5):
        stream = client.completions.create(
            model=MODEL, prompt="Count", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
    for _ in range(200):
        if metric(demo_service, "levserve_num_requests_running") == 0:
            break
        httpx.get(f"{demo_service.url}/health/live")
    assert metric(demo_service, "levserve_kv_cache_usage_perc") == 0
    assert metric(demo_service, 'levserve_request_success_total{finished_reason="abort"') == aborted + 5


def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers(demo_service):
    with pytest.raises(
        Exception, match=r"maximum context length is 16384 tokens.*you requested 20001 tokens"
    ) as refusal:
        demo_service.client().completions.create(model=MODEL, prompt=[5] * 20_000, max_tokens=1)
    assert refusal.value.code == "context_length_exceeded"


def test_no_prompt_and_no_answer_is_ever_logged(demo_service, demo_answers):
    pair = max(demo_answers, key=lambda p: len(p["answer"]))
    answer = ask(demo_service.client(), pair["question"])
    assert answer.choices[0].message.content == pair["answer"]
    demo_service.wait_for("request", timeout_s=60, request_id=answer._request_id)
    logged = "\n".join(demo_service.raw)
    words = pair["answer"].split()
    parts = [" ".join(words[start : start + 3]) for start in range(len(words) - 2)]
    assert [part for part in (pair["question"], *parts) if part in logged] == []


def test_every_log_line_has_cloud_loggings_keys(demo_service):
    assert all({"severity", "message", "time"} <= line.keys() for line in demo_service.log)
    assert {"locate", "weights", "executables", "tokenizer", "warm"} <= {line.get("phase") for line in demo_service.log}


@pytest.mark.slow
def test_a_connection_stays_open_between_two_requests(demo_service):
    ports = set()
    with contextlib.closing(HTTPConnection(demo_service.url.removeprefix("http://"), timeout=20)) as client:
        for wait_s in (0, 6):  # longer than uvicorn keeps one by itself
            time.sleep(wait_s)
            client.request("GET", "/health/live")
            ports.add(client.sock.getsockname())
            with client.getresponse() as response:
                assert (response.status, response.read()) == (200, b'{"status":"live"}')
    assert len(ports) == 1
