"""POST /v1/rerank, /v2/rerank, /rerank, /v1/score and /score."""

import pytest

from service.api.answers.vectors import Embeddings, Reranked, Scores
from tests.api.answer_types import as_typed
from tests.api.scripted_engine import Service
from tests.api.vectors.scripted_encoder import MAX_TOKENS, MODEL, EncoderService, error_of, vector_of
from tests.encoder.tiny import CLS, SEP, VOCAB

pytestmark = pytest.mark.anyio

DOCUMENTS = ["cat", "dog ran", "mat"]


def pair(query, document):
    ids = [CLS, *(VOCAB[word] for word in query.split()), SEP, *(VOCAB[word] for word in document.split()), SEP]
    return tuple(ids)


PAIRS = [pair("the", document) for document in DOCUMENTS]
SCORES = [float(vector_of(ids)[0]) for ids in PAIRS]


@pytest.fixture
def service():
    return EncoderService(vectors={"is_score": True})


def best_first():
    return sorted(range(len(DOCUMENTS)), key=lambda index: -SCORES[index])


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/reranking", "/v1/reranking", "/v2/rerank"])
async def test_documents_come_in_the_order_of_their_scores(path, service):
    answer = (await service.post(path, query="the", documents=DOCUMENTS, user="someone")).json()
    assert service.encoder.requests == [tuple(PAIRS)]
    assert [result["index"] for result in answer["results"]] == best_first()
    assert [result["relevance_score"] for result in answer["results"]] == sorted(SCORES, reverse=True)
    num_tokens = sum(map(len, PAIRS))
    assert (answer["model"], answer["usage"]) == (MODEL, {"prompt_tokens": num_tokens, "total_tokens": num_tokens})


async def test_each_route_returns_documents_as_its_inventor_does(service):
    fields = {"query": "the", "documents": [{"text": "cat"}, "dog ran"]}
    default = (await service.post("/v1/rerank", **fields)).json()
    assert {result["document"]["text"] for result in default["results"]} == {"cat", "dog ran"}
    without = (await service.post("/v1/rerank", **fields, return_documents=False)).json()
    cohere = (await service.post("/v2/rerank", **fields)).json()
    assert all("document" not in result for answer in (without, cohere) for result in answer["results"])
    assert cohere["meta"]["tokens"]["input_tokens"] == cohere["usage"]["total_tokens"]
    asked = (await service.post("/v2/rerank", **fields, return_documents=True)).json()
    assert all("document" in result for result in asked["results"])


async def test_top_n_keeps_the_best(service):
    answer = (await service.post("/v1/rerank", query="the", documents=DOCUMENTS, top_n=1)).json()
    assert [result["index"] for result in answer["results"]] == best_first()[:1]


async def test_a_document_is_cut_where_the_request_asks_for_it(service):
    long = " ".join(["cat"] * 20)
    await service.post("/v1/rerank", query="the", documents=[long], truncate_prompt_tokens=-1)
    await service.post("/v2/rerank", query="the", documents=[long], max_tokens_per_doc=2)
    assert service.encoder.requests == [(pair("the", " ".join(["cat"] * (MAX_TOKENS - 4))),), (pair("the", "cat cat"),)]


async def test_a_pair_that_is_too_long_is_refused_with_both_numbers(service):
    response = await service.post("/v1/rerank", query="the", documents=["cat", " ".join(["cat"] * 20)])
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, "documents[1]")
    assert f"at most {MAX_TOKENS} tokens" in error["message"]
    assert "has 24" in error["message"]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize("first", ["the", ["the"] * 3])
async def test_each_second_text_is_scored_with_the_first_text_or_its_own(path, first, service):
    answer = (await service.post(path, text_1=first, text_2=DOCUMENTS)).json()
    assert [(item["index"], item["score"]) for item in answer["data"]] == list(enumerate(SCORES))
    assert answer["usage"]["total_tokens"] == sum(map(len, PAIRS))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"documents": ["cat"]}, "query"),
        ("/v1/rerank", {"query": "", "documents": ["cat"]}, "query"),
        ("/v1/rerank", {"query": "the"}, "documents"),
        ("/v1/rerank", {"query": "the", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "the", "documents": "cat"}, "documents"),
        ("/v1/rerank", {"query": "the", "documents": ["cat", ""]}, "documents[1]"),
        ("/v1/rerank", {"query": "the", "documents": ["cat", 5]}, "documents[1]"),
        ("/v1/rerank", {"query": "the", "documents": [{"text": "cat", "image": ""}]}, "documents"),
        ("/v1/rerank", {"query": "the", "documents": ["cat"] * 2049}, "documents"),
        ("/v1/rerank", {"query": "the", "documents": ["cat"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "the", "documents": ["cat"], "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/score", {"text_1": "the"}, "text_2"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["cat"]}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["cat", ""]}, "text_2[1]"),
    ],
)
async def test_bad_input_is_refused_by_its_name_and_never_scored(path, body, param, service):
    response = await service.post(path, **body)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert service.encoder.requests == []


async def test_kinds_of_models_refuse_one_anothers_routes_by_name(service):
    for answer in (
        await service.post("/v1/embeddings", input="cat"),
        await EncoderService().post("/v1/rerank", query="the", documents=["cat"]),
        await Service().post("/v1/score", {"model": "org/small-chat", "text_1": "a", "text_2": "b"}),
    ):
        assert (answer.status_code, error_of(answer)["code"]) == (400, "unsupported_model")
    assert "/v1/rerank" in error_of(await service.post("/v1/embeddings", input="cat"))["message"]


async def test_models_tell_no_dimensions_of_a_reranker(service):
    [model] = (await service.get("/v1/models")).json()["data"]
    assert "embedding_dimensions" not in model


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/rerank", {"query": "the", "documents": DOCUMENTS}, Reranked),
        ("/v2/rerank", {"query": "the", "documents": DOCUMENTS}, Reranked),
        ("/v1/score", {"text_1": "the", "text_2": DOCUMENTS}, Scores),
        ("/v1/embeddings", {"input": DOCUMENTS}, Embeddings),
        ("/v1/embeddings", {"input": DOCUMENTS, "encoding_format": "base64"}, Embeddings),
    ],
)
async def test_an_answer_has_the_fields_of_its_schema_and_no_others(path, body, kind):
    service = EncoderService(vectors={"is_score": kind is not Embeddings})
    answer = (await service.post(path, **body)).json()
    assert as_typed(kind, answer) == answer


@pytest.mark.parametrize("model", [MODEL, "default", "unknown"])
async def test_a_request_that_a_router_has_written_anew_gets_sglangs_answer(model, service):
    body = {"model": model, "query": "the", "documents": DOCUMENTS}
    body |= {"top_k": None, "return_documents": True, "rid": None, "user": None}
    async with service.client() as client:
        answer = await client.post("/v1/rerank", json=body)
    assert "x-levserve-ignored" not in answer.headers
    assert answer.json() == [
        {"score": SCORES[index], "index": index, "document": DOCUMENTS[index]} for index in best_first()
    ]


async def test_a_requests_own_sglang_fields_are_kept(service):
    body = {"query": "the", "documents": DOCUMENTS, "rid": "a", "top_k": 1, "return_documents": False}
    [result] = (await service.post("/v1/rerank", **body)).json()
    assert result == {"score": max(SCORES), "index": best_first()[0]}


async def test_a_model_that_is_not_here_is_refused_where_no_router_wrote_its_name(service):
    answer = await service.post("/v1/rerank", model="default", query="the", documents=DOCUMENTS)
    assert answer.status_code == 404
