"""The embedding cache, as clients and operators see it."""

import pytest

from service.errors import NonFiniteVector
from tests.api.vectors.scripted_encoder import MODEL, EncoderService, error_of, vector_of
from tests.encoder.tiny import CLS, SEP, VOCAB

pytestmark = pytest.mark.anyio

CAT, DOG = ((CLS, VOCAB[word], SEP) for word in ("cat", "dog"))
KEYS = ("sk-one", "sk-two")


def service_of(**options):
    return EncoderService(cache_bytes=1_000_000, **options)


async def test_a_text_is_encoded_once_and_counted_always():
    service = service_of()
    first = (await service.post(input=["cat", "dog", "cat"])).json()
    second = (await service.post(input=["dog", "cat"])).json()
    assert service.encoder.requests == [(CAT, DOG)]
    assert [item["embedding"] for item in second["data"]] == [first["data"][i]["embedding"] for i in (1, 0)]
    assert second["usage"]["total_tokens"] == 6
    text, labels = service.metrics.exposition().decode(), f'{{model_name="{MODEL}"}}'
    assert f"levserve_embedding_cache_hits_total{labels} 2.0" in text
    assert f"levserve_embedding_cache_misses_total{labels} 3.0" in text


async def test_long_requests_are_found_as_well():
    service = service_of()
    texts = [[5 + i % 10] * 8 for i in range(600)]
    for _ in range(2):
        answer = (await service.post(input=texts)).json()
    assert len(service.encoder.requests) == 1
    assert answer["data"][599]["embedding"] == pytest.approx(vector_of(texts[599]).tolist())


async def test_a_cached_vector_is_cut_like_any_other():
    service = service_of(vectors={"matryoshka_sizes": (2,)})
    await service.post(input="cat")
    [item] = (await service.post(input="cat", dimensions=2)).json()["data"]
    assert len(item["embedding"]) == 2
    assert len(service.encoder.requests) == 1


async def test_clients_with_other_keys_find_nothing():
    service = service_of(api_keys=KEYS)
    for key in (*KEYS, KEYS[0]):
        async with service.client() as client:
            body = {"model": "org/encoder", "input": "cat"}
            await client.post("/v1/embeddings", json=body, headers={"Authorization": f"Bearer {key}"})
    assert service.encoder.requests == [(CAT,), (CAT,)]


async def test_pairs_are_cached_apart_from_texts_of_the_same_tokens():
    service = service_of(vectors={"is_score": True})
    for _ in range(2):
        await service.post("/v1/rerank", query="the", documents=["cat"])
    assert len(service.encoder.requests) == 1


async def test_an_error_names_the_text_of_the_request_and_nothing_is_kept():
    service = service_of()
    await service.post(input="cat")
    service.encoder.error = NonFiniteVector(0)
    response = await service.post(input=["cat", "dog"])
    assert "index 1" in error_of(response)["message"]
    service.encoder.error = None
    await service.post(input="dog")
    assert service.encoder.requests[-1] == (DOG,)


async def test_without_a_cache_every_text_is_encoded():
    service = EncoderService(cache_bytes=0)
    for _ in range(2):
        await service.post(input="cat")
    assert len(service.encoder.requests) == 2
