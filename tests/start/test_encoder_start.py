"""A service of an encoder: its first start compiles, its second one finds the bundle; clients get vectors of both."""

import base64
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.encoder import tiny
from tests.process import running_service
from tests.served import outcomes_of, prewarm, stats_of

SETTINGS = {"admin_api_key": "operator", "max_prefill_tokens": "32"}
TEXTS = ["the cat sat", "a fast red dog ran on the mat", "blue tree"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    tiny.write_checkpoint(folder, max_position_embeddings=32)
    return folder


@pytest.fixture(scope="module")
def expected(checkpoint) -> np.ndarray:
    config = tiny.CONFIG | {"max_position_embeddings": 32}
    tensors, tokenizer = tiny.tensors_of(config), tiny.tokenizer()
    states = [tiny.hidden_states(tensors, config, tokenizer.encode(text).ids) for text in TEXTS]
    return np.array([tiny.unit(hidden.mean(0)) for hidden in states])


def vectors_by_client(service) -> np.ndarray:
    """The official client asks for base64 by itself, and decodes it."""
    answer = service.client().embeddings.create(model="tiny", input=TEXTS)
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert answer.usage.total_tokens == sum(len(tiny.tokenizer().encode(text).ids) for text in TEXTS)
    return np.array([item.embedding for item in answer.data])


def test_a_second_start_finds_the_bundle_traces_nothing_and_gives_the_same_vectors(checkpoint, expected, tmp_path):
    settings = SETTINGS | {"model_uri": checkpoint, "model_name": "tiny", "local_model_cache": tmp_path}
    with running_service(**settings) as service:
        service.wait_for("bundle stored", timeout_s=60)
        first, cold = vectors_by_client(service), stats_of(service)
        assert outcomes_of(service) == {"miss": 1}
    np.testing.assert_allclose(first, expected, atol=1e-5)
    assert cold["traces"] > 0
    assert "haliax" not in cold["heavy_imports"]
    with running_service(**settings) as service:
        assert outcomes_of(service) == {"hit": 1}
        np.testing.assert_array_equal(vectors_by_client(service), first)
        warm = stats_of(service)
        assert (warm["compiles"], warm["traces"], warm["heavy_imports"]) == (0, 0, [])
        assert warm["shapes"]["buckets"] == [16, 32]
        assert {"import", "locate", "weights", "executables", "tokenizer", "warm"} == {
            span["phase"] for span in warm["spans"]
        }
        [model] = httpx.get(f"{service.url}/v1/models").json()["data"]
        assert (model["max_model_len"], model["embedding_dimensions"]) == (32, 32)
        body = {"model": "tiny", "input": TEXTS[0], "encoding_format": "base64"}
        [item] = httpx.post(f"{service.url}/v1/embeddings", json=body).json()["data"]
        alone = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
        np.testing.assert_allclose(alone, first[0], atol=1e-6)
        metrics = httpx.get(f"{service.url}/metrics").text
        assert "levserve_xla_compiles_after_ready_total 0.0" in metrics


@pytest.mark.slow
def test_prewarm_makes_the_bundle_of_an_encoder(checkpoint, tmp_path):
    arguments, settings = (tmp_path, str(checkpoint)), {"max_prefill_tokens": "32"}
    assert prewarm(*arguments, "--check", **settings)[0] == 1
    code, lines = prewarm(*arguments, **settings)
    assert (code, lines[-1]["outcome"], lines[-1]["executables"]) == (0, "made", 6)
    assert prewarm(*arguments, "--check", **settings)[0] == 0


@pytest.mark.parametrize(
    ("settings", "named"), [({"max_model_len": "33"}, "MAX_MODEL_LEN"), ({"tensor_parallel": "2"}, "TENSOR_PARALLEL")]
)
def test_what_an_encoder_cannot_do_stops_the_start_by_name(settings, named, checkpoint, tmp_path):
    code, lines = prewarm(tmp_path, str(checkpoint), "--check", **settings)
    assert code == 1
    assert named in lines[-1]["message"]
