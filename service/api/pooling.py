"""POST /pooling, vLLM's, and POST /embedding and /embeddings, llama.cpp's."""

import time
import uuid
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pydantic_core import to_json

from service.api.answers.vectors import Pooling
from service.api.dependencies import OpenCall
from service.api.http.call import Call
from service.api.http.receive import json_body
from service.api.openapi.responses import GENERATION_ERRORS, answers, statuses
from service.api.schema.pooling import EmbeddingRequest, PoolingRequest
from service.api.served import ServedEncoder
from service.api.vectors.encoding import encode_body, encode_tokens, token_ids
from service.api.vectors.numbers import FEW_NUMBERS, cut, size_of, written
from service.encoder.request import Vectors
from service.errors import InvalidParameter

router = APIRouter(tags=["embeddings"])


@router.post("/pooling", responses=answers(Pooling, *GENERATION_ERRORS))
async def pool(
    call: OpenCall,
    body: Annotated[PoolingRequest, Depends(json_body(PoolingRequest))],
) -> Response:
    """Return numbers for each text: its vector, a vector of each token, a weight of each token, or its score.

    The special tokens at the ends of a text have no weight, and the first has no vector, with a model that was trained
    to leave them out (bge-m3).

    Deviations: the score of a pair comes from /v1/score. The vectors of tokens have length 1 and are those of the last
    layer, or of the model's own head for them.

    Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#pooling-api
    """
    model = await call.pooling(body.model)
    task = _task(body.task, model)
    call.log_user(body.user)
    texts = await token_ids(call, model, body)
    pooled = await _pooled(call, model, body, task, texts)
    num_tokens = sum(map(len, texts))
    head = {"id": f"pool-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": body.model}

    def write() -> bytes:
        data = [
            {"index": index, "object": "pooling", "data": written(numbers, body.encoding_format)}
            for index, numbers in enumerate(pooled)
        ]
        return to_json({**head, "data": data, "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens}})

    is_short = sum(numbers.size for numbers in pooled) <= FEW_NUMBERS
    content = write() if is_short else await call.run_in_thread(write)
    return Response(content, media_type="application/json")


@router.post("/embedding", responses=statuses(*GENERATION_ERRORS))
async def embed_like_llama_cpp(
    call: OpenCall,
    body: Annotated[EmbeddingRequest, Depends(json_body(EmbeddingRequest))],
) -> Response:
    """Return the vector of each text, of length 1.

    Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (POST /embedding)
    """
    model = await call.encoding(body.model)
    vectors = await encode_body(call, model, body, await token_ids(call, model, body))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)

    def write() -> bytes:
        return to_json([{"index": index, "embedding": [vector]} for index, vector in enumerate(vectors.tolist())])

    content = write() if vectors.size <= FEW_NUMBERS else await call.run_in_thread(write)
    return Response(content, media_type="application/json")


router.post("/embeddings", include_in_schema=False)(embed_like_llama_cpp)


def _task(wanted: str | None, model: ServedEncoder) -> str:
    """Return the task of a request.

    Raises:
        InvalidParameter: the model does not serve it.
    """
    tasks = model.tasks
    if wanted is not None and wanted not in tasks:
        message = f"Invalid 'task': the model {model.name!r} serves {', '.join(tasks)}, and not {wanted}."
        raise InvalidParameter(message, param="task")
    return wanted or tasks[0]


async def _pooled(
    call: Call, model: ServedEncoder, body: PoolingRequest, task: str, texts: list[tuple[int, ...]]
) -> list[np.ndarray]:
    """Return the numbers of each text."""
    vectors, tokens = model.vectors, model.tokens
    if tokens is None or task in {"embed", "classify"}:
        found: Vectors = await encode_body(call, model, body, texts)
        return list(cut(found, size_of(body.dimensions, vectors), is_normalized=vectors.is_normalized))
    make = tokens.vectors if task == "token_embed" else tokens.weights
    states = await encode_tokens(call, model, texts)
    return await call.run_in_thread(lambda: [make(rows, ids) for rows, ids in zip(states, texts, strict=True)])
