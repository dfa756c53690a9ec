"""Random JSON schemas through a service whose model has random weights: every answer that ends by itself is valid.

RANDOM_SCHEMAS is the number of schemas; `make schemas` asks for 2,000.
"""

import concurrent.futures
import json
import os
import random

import httpx
import jsonschema
import pytest
import tokenizers

from benchmarks.checkpoint import TINY, make_checkpoint
from tests.process import running_service
from tests.text.grammar.random_walks import random_schema

NUM_SCHEMAS = int(os.environ.get("RANDOM_SCHEMAS", "200"))
NUM_AT_ONCE = 16
MAX_TOKENS = 200
TOWARDS_AN_END = 4.0  # added to the logits of what closes: an even choice among all letters hardly ever does
Validator = jsonschema.Draft202012Validator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("random") / "tiny", TINY)


@pytest.fixture(scope="module")
def service(checkpoint):
    with running_service(model_uri=checkpoint, max_num_seqs=NUM_AT_ONCE, max_model_len=256) as process:
        yield process


@pytest.fixture(scope="module")
def bias(checkpoint):
    vocab = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json")).get_vocab()
    return {str(token_id): TOWARDS_AN_END for token, token_id in vocab.items() if token[:1] in {'"', "}", "]", ","}}


def answer_to(client, schema, seed, bias):
    """Return the status of a request for an instance of a schema, its text, and why it ended."""
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": MAX_TOKENS, "seed": seed, "temperature": 1}
    answer = client.post("/v1/completions", json=body | {"logit_bias": bias, "structured_outputs": {"json": schema}})
    choice = answer.json()["choices"][0] if answer.status_code == 200 else {"text": answer.text, "finish_reason": None}
    return answer.status_code, choice["text"], choice["finish_reason"]


def test_every_answer_that_ends_by_itself_satisfies_its_schema(service, bias):
    schemas = [random_schema(random.Random(seed)) for seed in range(NUM_SCHEMAS)]
    with (
        httpx.Client(base_url=service.url, timeout=120) as client,
        concurrent.futures.ThreadPoolExecutor(NUM_AT_ONCE) as pool,
    ):
        answers = list(pool.map(lambda seed: answer_to(client, schemas[seed], seed, bias), range(NUM_SCHEMAS)))
    wrong = []
    for seed, (schema, (status, text, reason)) in enumerate(zip(schemas, answers, strict=True)):
        assert status in (200, 400), (seed, schema, text)
        if reason == "stop":
            validator = Validator(schema, format_checker=Validator.FORMAT_CHECKER)
            wrong += [(seed, schema, text, error.message) for error in validator.iter_errors(json.loads(text))]
    assert wrong == []
    num_ended = sum(reason == "stop" for *_, reason in answers)
    num_refused = sum(status == 400 for status, *_ in answers)
    print(f"{NUM_SCHEMAS} schemas: {num_ended} answers ended by themselves and are valid, {num_refused} were refused")
    assert num_refused < NUM_SCHEMAS / 4
    assert num_ended > NUM_SCHEMAS / 2
