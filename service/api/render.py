"""POST /v1/chat/completions/render and /v1/completions/render: prompts as they are served, without an answer.

Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/serve/render/api_router.py,
https://github.com/llm-d/llm-d-inference-scheduler (`token-producer`, which routes by the token ids)
"""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic_core import to_json

from service.api.completions import DEFAULT_MAX_TOKENS
from service.api.dependencies import Arrival, RequestContext, arrival
from service.api.generation.admission import max_tokens_of, sampling_of
from service.api.generation.chat_prompt import chat_prompt
from service.api.generation.completion_prompts import completion_prompts
from service.api.http.receive import json_body
from service.api.openapi.responses import BODY_ERRORS, answers, list_of
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.generation import GenerationRequest

router = APIRouter(tags=["tokens"])


async def request_id(request: Request) -> str:
    """Return the id of the HTTP request, the client's own if it has sent one."""
    return request.state.request_id


@router.post("/v1/chat/completions/render", responses=answers("RenderedPrompt", *BODY_ERRORS))
async def render_chat_completion(
    name: Annotated[str, Depends(request_id)],
    arrived: Annotated[Arrival, Depends(arrival)],
    body: Annotated[ChatCompletionRequest, Depends(json_body(ChatCompletionRequest))],
) -> Response:
    """Return the token ids that a chat would be answered with.

    Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/serve/render/api_router.py
    """
    context = await arrived.generating(body.model)
    prompt = await context.make_prompt(body, chat_prompt)
    context.ignore(prompt.ignored)
    return json_answer(engine_request(context, body, f"chatcmpl-{name}", prompt.ids, param="messages"))


@router.post("/v1/completions/render", responses=list_of("RenderedPrompt", *BODY_ERRORS))
async def render_completion(
    name: Annotated[str, Depends(request_id)],
    arrived: Annotated[Arrival, Depends(arrival)],
    body: Annotated[CompletionRequest, Depends(json_body(CompletionRequest))],
) -> Response:
    """Return the token ids of each prompt that a completion would continue.

    Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/serve/render/api_router.py
    """
    context = await arrived.generating(body.model)
    prompts = await context.make_prompt(body, completion_prompts)
    names = [f"cmpl-{name}"] if len(prompts) == 1 else [f"cmpl-{name}-{index}" for index in range(len(prompts))]
    return json_answer(
        [
            engine_request(context, body, name, ids, param="prompt", default_max_tokens=DEFAULT_MAX_TOKENS)
            for name, ids in zip(names, prompts, strict=True)
        ]
    )


def engine_request(
    context: RequestContext,
    body: GenerationRequest,
    name: str,
    prompt_ids: Sequence[int],
    *,
    param: str,
    default_max_tokens: int | None = None,
) -> dict[str, Any]:
    """Return what an engine would get for a prompt, as vLLM's `GenerateRequest` states it.

    Args:
        context: the HTTP request's state.
        body: its checked body.
        name: what vLLM calls the request's id.
        prompt_ids: the rendered prompt.
        param: the field that the prompt came from.
        default_max_tokens: if neither the request nor DEFAULT_MAX_TOKENS sets one; None for the rest of the context.

    Raises:
        InvalidParameter: the prompt is empty, or a token id is not the model's.
        ContextLengthExceeded: the context has no room for the tokens requested.
    """
    body.check_token_ids(context.model.vocab_size)
    sampling = sampling_of(body, context.model, context.api)
    return {
        "request_id": name,
        "token_ids": list(prompt_ids),
        "token_offsets": None,
        "features": None,  # of images and audio
        "sampling_params": {
            "n": body.n,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": body.seed,
            "stop": body.stop,
            "stop_token_ids": body.stop_token_ids,
            "ignore_eos": body.ignore_eos,
            "max_tokens": max_tokens_of(context, body, prompt_ids, param, default_max_tokens),
            "min_tokens": body.min_tokens,
            "logprobs": body.num_logprobs,
            "prompt_logprobs": body.num_prompt_logprobs,
        },
        "model": body.model,
        "stream": body.stream,
        "stream_options": body.stream_options,
        "return_token_ids": body.return_token_ids,
        "cache_salt": body.cache_salt,
        "priority": body.priority,
        "kv_transfer_params": None,
    }


def json_answer(answer: Any) -> Response:
    """Return an answer that may hold many token ids."""
    return Response(to_json(answer), media_type="application/json")
