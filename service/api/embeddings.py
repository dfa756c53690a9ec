"""POST /v1/embeddings."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pydantic_core import to_json

from service.api.answers.vectors import Embeddings
from service.api.dependencies import OpenCall
from service.api.http.receive import json_body
from service.api.openapi.responses import GENERATION_ERRORS, answers
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.vectors.encoding import encode_body, token_ids
from service.api.vectors.numbers import FEW_NUMBERS, cut, size_of, written

router = APIRouter(tags=["embeddings"])


@router.post("/v1/embeddings", responses=answers(Embeddings, *GENERATION_ERRORS))
async def create_embeddings(
    call: OpenCall,
    body: Annotated[EmbeddingsRequest, Depends(json_body(EmbeddingsRequest))],
) -> Response:
    """Return the vector of each text.

    Deviations: token ids are the served model's own, not OpenAI's, and get no special tokens; `dimensions` needs a
    model that was trained for it; vectors have length 1 only if the model's own files say so.

    Source: https://platform.openai.com/docs/api-reference/embeddings/create
    """
    model = await call.encoding(body.model)
    size = size_of(body.dimensions, model.vectors)
    call.log_user(body.user)
    texts = await token_ids(call, model, body)
    vectors = cut(await encode_body(call, model, body, texts), size, is_normalized=model.vectors.is_normalized)
    num_tokens = sum(map(len, texts))

    def write() -> bytes:
        return to_json(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": written(vector, body.encoding_format)}
                    for index, vector in enumerate(vectors)
                ],
                "model": body.model,
                "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            }
        )

    content = write() if vectors.size <= FEW_NUMBERS else await call.run_in_thread(write)
    return Response(content, media_type="application/json")
