"""The check of an embedding model or a reranker."""

import math
from typing import Any

from service.smoke.client import json_of
from service.smoke.expectations import expect_status, expect_value, take
from service.smoke.failures import CheckFailed
from service.smoke.report import Finding
from service.smoke.session import Session

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
TEXTS = ["Once upon a time", "It is cold outside today"]


def vectors_request(session: Session) -> tuple[str, dict[str, Any]]:
    """Return the route of an embedding model or reranker, and a body for it."""
    if "rerank" in (session.capabilities or ()):
        return RERANK, {"model": session.model_name, "query": "What is the weather?", "documents": TEXTS}
    return EMBEDDINGS, {"model": session.model_name, "input": TEXTS}


def check_vectors(session: Session) -> Finding:
    """Check the vectors or the ranking of two texts."""
    path, body = vectors_request(session)
    reply = session.client.post(path, body)
    expect_status(reply, 200)
    answer = json_of(reply)
    if path == RERANK:
        scores = [take(reply, answer, f"results.{i}.relevance_score", float) for i in range(len(TEXTS))]
        indices = {take(reply, answer, f"results.{i}.index", int) for i in range(len(TEXTS))}
        if indices != set(range(len(TEXTS))) or scores != sorted(scores, reverse=True):
            raise CheckFailed("the documents are not sorted by score", reply)
        return Finding(f"two documents ranked, {reply.seconds:.2f} s", {"num_scores": len(scores)})
    expect_value(reply, answer, "object", ("list",))
    vectors = [take(reply, answer, f"data.{i}.embedding", list) for i in range(len(TEXTS))]
    sizes = {len(vector) for vector in vectors}
    if len(sizes) != 1 or not all(isinstance(x, int | float) and math.isfinite(x) for v in vectors for x in v):
        raise CheckFailed("the vectors are not finite numbers of equal length", reply)
    if vectors[0] == vectors[1]:
        raise CheckFailed("two different texts have the same vector", reply)
    return Finding(f"two vectors of {sizes.pop()} dimensions, {reply.seconds:.2f} s", {"dimensions": len(vectors[0])})
