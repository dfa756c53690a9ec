"""POST /v1/rerank and /v1/score, and their other names."""

import time
import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.answers.vectors import Reranked, Scores
from service.api.dependencies import OpenCall
from service.api.http.call import Call
from service.api.http.receive import json_body
from service.api.openapi.responses import GENERATION_ERRORS, answers
from service.api.schema.rerank import RerankRequest, ScoreRequest
from service.api.vectors.pairs import score

router = APIRouter(tags=["embeddings"])


@router.post("/v1/rerank", responses=answers(Reranked, *GENERATION_ERRORS))
async def rerank(
    call: OpenCall,
    body: Annotated[RerankRequest, Depends(json_body(RerankRequest))],
) -> Response:
    """Return the documents in the order of their relevance to the query, with their scores.

    Deviations: a pair of query and document that is too long is refused, unless `truncate_prompt_tokens` or
    `max_tokens_per_doc` cuts the document. With SGLang's `rid` the answer is SGLang's: a list of scores.

    Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#re-rank-api, https://jina.ai/reranker
    """
    answer = await _reranked(call, body, returns_documents=body.return_documents is not False)
    return JSONResponse(answer if body.rid is None else _like_sglang(answer))


@router.post("/v2/rerank", responses=answers(Reranked, *GENERATION_ERRORS))
async def rerank_like_cohere(
    call: OpenCall,
    body: Annotated[RerankRequest, Depends(json_body(RerankRequest))],
) -> Response:
    """Return the documents' indices in the order of their relevance to the query, with their scores.

    Deviations: as /v1/rerank; documents are returned only with `return_documents: true`.

    Source: https://docs.cohere.com/reference/rerank
    """
    answer = await _reranked(call, body, returns_documents=body.return_documents is True)
    tokens = {"input_tokens": answer["usage"]["total_tokens"], "output_tokens": 0}
    return JSONResponse({**answer, "meta": {"api_version": {"version": "2"}, "tokens": tokens}})


@router.post("/v1/score", responses=answers(Scores, *GENERATION_ERRORS))
async def create_score(
    call: OpenCall,
    body: Annotated[ScoreRequest, Depends(json_body(ScoreRequest))],
) -> Response:
    """Return the score of each pair of texts.

    Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#score-api
    """
    model = await call.scoring(body.model)
    call.log_user(body.user)
    scored = await score(call, model, body)
    data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scored.scores)]
    head = {"id": f"score-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": body.model}
    return JSONResponse({**head, "data": data, "usage": _usage(scored.num_tokens)})


# Jina's, vLLM's and llama.cpp's other names of the same routes.
router.post("/rerank", include_in_schema=False)(rerank)
router.post("/reranking", include_in_schema=False)(rerank)
router.post("/v1/reranking", include_in_schema=False)(rerank)
router.post("/score", include_in_schema=False)(create_score)


async def _reranked(call: Call, body: RerankRequest, *, returns_documents: bool) -> dict[str, Any]:
    model = await call.scoring(body.model or None)
    call.log_user(body.user)
    scored = await score(call, model, body)
    # Equal scores keep the order of the request.
    order = sorted(range(len(body.documents)), key=lambda index: -scored.scores[index])
    results = [
        {
            "index": index,
            "relevance_score": scored.scores[index],
            **({"document": {"text": body.documents[index]}} if returns_documents else {}),
        }
        for index in order[: body.top_n]
    ]
    head = {"id": f"rerank-{uuid.uuid4().hex}", "model": body.model}
    return {**head, "results": results, "usage": _usage(scored.num_tokens)}


def _like_sglang(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a ranking in SGLang's shape."""
    return [
        {"score": result["relevance_score"], "index": result["index"]}
        | ({"document": result["document"]["text"]} if "document" in result else {})
        for result in answer["results"]
    ]


def _usage(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
