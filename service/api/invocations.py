"""POST /invocations: one route for every kind of request, as SageMaker has it.

Source: https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html,
https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/sagemaker/api_router.py
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.api.answers.service import Invoked
from service.api.chat import create_chat_completion
from service.api.completions import create_completion
from service.api.dependencies import OpenCall
from service.api.embeddings import create_embeddings
from service.api.http.receive import json_body, read_body
from service.api.openapi.responses import GENERATION_ERRORS, answers, json_content, reference
from service.api.pooling import pool
from service.api.rerank import create_score, rerank
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.pooling import PoolingRequest
from service.api.schema.rerank import RerankRequest, ScoreRequest
from service.api.schema.wire import WireObject
from service.errors import RequestError

router = APIRouter(tags=["generation"])


class Invocation(WireObject):
    """The fields of a body that identify its kind."""

    bulk: ClassVar[Mapping[str, Any]] = dict.fromkeys(("messages", "prompt", "documents", "text_2", "input"), "")

    messages: Any = None
    prompt: Any = None
    documents: Any = None
    text_2: Any = None
    task: Any = None
    input: Any = None


type Handler = Callable[[Any, Any], Awaitable[Response]]
# By the field that no kind before has.
KINDS: Mapping[str, tuple[type[WireObject], Handler]] = {
    "messages": (ChatCompletionRequest, create_chat_completion),
    "prompt": (CompletionRequest, create_completion),
    "documents": (RerankRequest, rerank),
    "text_2": (ScoreRequest, create_score),
    "task": (PoolingRequest, pool),
    "input": (EmbeddingsRequest, create_embeddings),
}
ANY_BODY = {
    "requestBody": {
        "required": True,
        "content": json_content({"anyOf": [reference(kind) for kind, _ in KINDS.values()]}),
    }
}


@router.post("/invocations", responses=answers(Invoked, *GENERATION_ERRORS), openapi_extra=ANY_BODY)
async def invoke(request: Request, call: OpenCall) -> Response:
    """Answer a chat, a completion, embeddings, a ranking or scores, whichever the body asks for.

    Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/sagemaker/api_router.py
    """
    shape = await read_body(Invocation, request)
    name = next((name for name in KINDS if getattr(shape, name) is not None), None)
    if name is None:
        raise RequestError(
            "The body has none of " + ", ".join(f"'{name}'" for name in KINDS) + ", which say what it asks for."
        )
    kind, answer = KINDS[name]
    return await answer(call, await json_body(kind)(request))
