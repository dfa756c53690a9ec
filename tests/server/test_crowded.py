"""Requests are answered alone as among forty others, whatever steps computed them."""

import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from tests.process import running_service
from tests.tolerances import SAME_TOKENS_OTHER_STEPS_ATOL

NUM_REQUESTS, NUM_AMONG, NUM_ROUNDS = 660, 40, 3
WORDS = ("the", "sky", "is", "blue", "a", "small", "model", "can", "count", "of", "this", "text", "while", "it")


def bodies():
    """Prompts of many lengths, some of which begin alike, greedy and sampled by turns."""
    random = np.random.RandomState(36)
    start = " ".join(random.choice(WORDS, 30))
    for number in range(NUM_REQUESTS):
        prompt = " ".join(random.choice(WORDS, 1 + number % 60))
        yield {
            "model": "levserve-demo",
            "prompt": f"{start} {prompt}" if number % 3 == 0 else prompt,
            "max_tokens": 1 + number % 12,
            "temperature": 0 if number % 2 else 1,
            "seed": number,
            "logprobs": 1,
        }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_660_requests_are_answered_alone_as_among_forty_in_three_rounds(tmp_path):
    settings = {
        "local_model_cache": tmp_path,
        "max_num_seqs": 8,
        "max_model_len": 256,
        "max_prefill_tokens": 64,
        "max_concurrent_requests": 64,
    }
    with running_service(**settings) as service, httpx.Client(base_url=service.url, timeout=300) as client:

        def answer(body):
            response = client.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            return response.json()["choices"][0]["logprobs"]

        asked = list(bodies())
        # Under a salt of its own a request finds no pages that others left.
        alone = [answer(body | {"cache_salt": f"alone {number}"}) for number, body in enumerate(asked)]
        with ThreadPoolExecutor(NUM_AMONG) as pool:
            for _ in range(NUM_ROUNDS):
                for lonely, among in zip(alone, pool.map(answer, asked), strict=True):
                    assert lonely["tokens"] == among["tokens"]
                    np.testing.assert_allclose(
                        lonely["token_logprobs"], among["token_logprobs"], atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0
                    )
        steps = re.findall(r'^levserve_engine_steps_total\{.*kind="mixed".*\} (\d+)', client.get("/metrics").text, re.M)
        assert sum(map(int, steps)) > NUM_REQUESTS // 2
