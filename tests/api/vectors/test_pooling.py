"""POST /pooling, and llama.cpp's /embedding and /embeddings."""

import base64

import numpy as np
import pytest

from service.api.answers.vectors import Pooling
from service.models.encoders.config import TokenHeads, VectorConfig
from service.models.encoders.token_heads import TokenOutputs
from tests.api.answer_types import as_typed
from tests.api.vectors.scripted_encoder import MODEL, EncoderService, error_of, hidden_of, vector_of
from tests.encoder.tiny import CLS, SEP, VOCAB

pytestmark = pytest.mark.anyio

CAT, DOG_RAN = (CLS, VOCAB["cat"], SEP), (CLS, VOCAB["dog"], VOCAB["ran"], SEP)
SPARSE = np.array([[0.5, 0, -3, 0]], np.float32)


def service_of(*, has_weights=False, **vectors):
    heads = TokenHeads(("sparse_linear",) if has_weights else (), CLS, SEP)
    weights = {"sparse_linear": SPARSE, "sparse_linear.bias": np.zeros(1, np.float32)}
    return EncoderService(tokens=TokenOutputs(VectorConfig(token_heads=heads), weights), vectors=vectors)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("task", [{}, {"task": "token_embed"}])
async def test_without_a_task_each_token_has_a_vector(task):
    answer = (await service_of().post("/pooling", input=["cat", "dog ran"], user="someone", **task)).json()
    for item, text in zip(answer["data"], (CAT, DOG_RAN), strict=True):
        np.testing.assert_allclose(item["data"], unit(hidden_of(text)), rtol=1e-6)
    assert (answer["model"], answer["usage"]) == (MODEL, {"prompt_tokens": 7, "total_tokens": 7})
    as_typed(Pooling, answer)


async def test_a_lexical_weight_of_each_token_is_at_least_zero():
    answer = (
        await service_of(has_weights=True).post("/pooling", input=["cat", "dog ran"], task="token_classify")
    ).json()
    expected = [np.maximum(hidden_of(text)[1:-1] @ SPARSE[0], 0) for text in (CAT, DOG_RAN)]
    assert [item["data"] for item in answer["data"]] == [weights.tolist() for weights in expected]
    as_typed(Pooling, answer)


async def test_the_vector_of_a_text_is_that_of_embeddings():
    service = service_of(matryoshka_sizes=(2,))
    [item] = (await service.post("/pooling", input="cat", task="embed")).json()["data"]
    assert item["data"] == pytest.approx(vector_of(CAT).tolist())
    [item] = (await service.post("/pooling", input="cat", task="embed", dimensions=2)).json()["data"]
    assert item["data"] == pytest.approx(unit(vector_of(CAT)[None, :2])[0].tolist())


async def test_base64_has_the_bytes_of_every_token():
    [item] = (await service_of().post("/pooling", input="cat", encoding_format="base64")).json()["data"]
    numbers = np.frombuffer(base64.b64decode(item["data"]), "<f4").reshape(3, -1)
    np.testing.assert_allclose(numbers, unit(hidden_of(CAT)), rtol=1e-6)


async def test_a_model_that_scores_gives_a_text_its_score():
    service = EncoderService(vectors={"is_score": True})
    [item] = (await service.post("/pooling", input="cat", task="classify")).json()["data"]
    assert item["data"] == pytest.approx(vector_of(CAT).tolist())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"task": "token_classify"}, "task"),
        ({"task": "classify"}, "task"),
        ({"task": "score"}, "task"),
        ({"dimensions": 2}, "dimensions"),
        ({"normalize": False}, "normalize"),
        ({"use_activation": False}, "use_activation"),
        ({"endianness": "big"}, "endianness"),
        ({"embed_dtype": "float16"}, "embed_dtype"),
        ({"input": ""}, "input"),
        ({"input": ["cat", "dog dog dog dog dog dog dog"]}, "input[1]"),
    ],
)
async def test_what_a_model_does_not_serve_is_refused_by_name(fields, param):
    response = await service_of().post("/pooling", **{"input": "cat"} | fields)
    assert (response.status_code, error_of(response)["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
@pytest.mark.parametrize("field", ["content", "input"])
async def test_llama_cpp_has_a_list_of_vectors_of_length_one(path, field):
    service = service_of(is_normalized=False)
    answer = (await service.post(path, **{field: ["cat", list(DOG_RAN)[1:-1]][:1]})).json()
    assert [item["index"] for item in answer] == [0]
    np.testing.assert_allclose(answer[0]["embedding"], unit(vector_of(CAT)[None]), rtol=1e-6)


async def test_llama_cpp_needs_no_model_and_takes_token_ids():
    async with service_of().client() as client:
        answer = (await client.post("/embedding", json={"content": [5, 6], "embd_normalize": 2})).json()
    np.testing.assert_allclose(answer[0]["embedding"], [vector_of((5, 6))], rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "content"),
        ({"content": "cat", "input": "cat"}, "input"),
        ({"content": "cat", "embd_normalize": -1}, "embd_normalize"),
        ({"content": ["cat", 5]}, "content[1]"),
        ({"content": [5, 10_000]}, "content[1]"),
        ({"input": [5, 10_000]}, "input[1]"),
    ],
)
async def test_what_llama_cpp_takes_and_this_service_does_not_is_refused_by_name(fields, param):
    response = await service_of().post("/embedding", **fields)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
