"""Clients of other projects for vectors and rankings, each against a process."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.contract.installation import python_of
from tests.encoder import tiny
from tests.encoder.test_scores import write_reranker
from tests.process import running_service

PROGRAM = Path(__file__).parent / "embeddings" / "program.py"
MODEL = "tiny"
TEXTS = ["the cat sat", "a fast red dog ran on the mat", "blue tree"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def results_of(folder, kind, cache):
    """What the clients got from a service of this checkpoint."""
    settings = {"model_uri": folder, "model_name": MODEL, "local_model_cache": cache, "max_prefill_tokens": "32"}
    with running_service(**settings) as service:
        given = {"url": service.url, "model": MODEL, "texts": TEXTS, "kind": kind}
        command = [python_of(PROGRAM), str(PROGRAM), json.dumps(given)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_vectors_are_those_of_the_texts(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    tensors = tiny.write_checkpoint(folder)
    encoded = [tiny.tokenizer().encode(text).ids for text in [*TEXTS, TEXTS[0]]]
    expected = [tiny.unit(tiny.hidden_states(tensors, tiny.CONFIG, text).mean(0)) for text in encoded]
    results = results_of(folder, "vectors", tmp_path / "cache")
    assert set(results) == {"langchain", "llama_index", "haystack"}
    for vectors in results.values():
        np.testing.assert_allclose(vectors, expected, atol=1e-4)


def test_a_ranking_is_in_the_order_of_the_scores(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_reranker(folder, "bert")
    [(first, higher), (second, lower)] = results_of(folder, "scores", tmp_path / "cache")["ranked"]
    assert {first, second} < set(range(len(TEXTS)))
    assert 1 >= higher >= lower >= 0
