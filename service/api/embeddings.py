"""POST /v1/embeddings."""

import base64
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pydantic_core import to_json

from service.api.dependencies import Arrival, arrival
from service.api.generation.log_facts import log_user
from service.api.http.receive import json_body
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.served import VectorFacts
from service.api.vectors.encoding import encode, token_ids
from service.encoder.request import Vectors
from service.errors import InvalidParameter

router = APIRouter()

# Writing so many numbers takes less time than passing them to a thread.
FEW_NUMBERS = 4096


@router.post("/v1/embeddings")
async def create_embeddings(
    arrived: Annotated[Arrival, Depends(arrival)],
    body: Annotated[EmbeddingsRequest, Depends(json_body(EmbeddingsRequest))],
) -> Response:
    """Return the vector of each text.

    Deviations: token ids are the served model's own, not OpenAI's, and get no special tokens; `dimensions` needs a
    model that was trained for it; vectors have length 1 only if the model's own files say so.

    Source: https://platform.openai.com/docs/api-reference/embeddings/create
    """
    context = await arrived.encoding(body.model)
    size = _size(body.dimensions, context.model.vectors)
    log_user(context.log_fields, body.user)
    texts = await token_ids(context, body)
    vectors = _cut(await encode(context, texts), size, is_normalized=context.model.vectors.is_normalized)
    num_tokens = sum(map(len, texts))

    def write() -> bytes:
        return to_json(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": vector}
                    for index, vector in enumerate(_written(vectors, body.encoding_format))
                ],
                "model": body.model,
                "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            }
        )

    content = write() if vectors.size <= FEW_NUMBERS else await context.run_in_thread(write)
    return Response(content, media_type="application/json")


def _size(wanted: int | None, vectors: VectorFacts) -> int:
    """Return the dimensions to return.

    Raises:
        InvalidParameter: the model has fewer, or was not trained for so many.
    """
    if wanted is None or wanted == vectors.size:
        return vectors.size
    if vectors.matryoshka_sizes is None:
        message = (
            f"Invalid 'dimensions': the model was not trained to be cut (its config.json has no "
            f"matryoshka_dimensions), so its vectors have {vectors.size} dimensions."
        )
        raise InvalidParameter(message, param="dimensions")
    if wanted > vectors.size or (vectors.matryoshka_sizes and wanted not in vectors.matryoshka_sizes):
        sizes = ", ".join(map(str, vectors.matryoshka_sizes)) or f"1 to {vectors.size}"
        message = (
            f"Invalid 'dimensions': {wanted} is not one of the dimensions that the model was trained for: {sizes}."
        )
        raise InvalidParameter(message, param="dimensions")
    return wanted


def _cut(vectors: Vectors, size: int, *, is_normalized: bool) -> Vectors:
    """Return the first dimensions of each vector, with length 1 again if the whole has it."""
    if size == vectors.shape[1]:
        return vectors
    cut = vectors[:, :size]
    return cut / np.linalg.norm(cut, axis=1, keepdims=True) if is_normalized else cut


def _written(vectors: Vectors, encoding_format: str) -> list[Any]:
    if encoding_format == "float":
        return vectors.tolist()
    return [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
