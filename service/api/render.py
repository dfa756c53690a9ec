"""POST /v1/chat/completions/render and /v1/completions/render: prompts as they are served, without an answer.

Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/serve/render/api_router.py,
https://github.com/llm-d/llm-d-inference-scheduler (`token-producer`, which routes by the token ids)
"""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pydantic_core import to_json

from service.api.answers.service import RenderedPrompt
from service.api.completions import DEFAULT_MAX_TOKENS
from service.api.conversation import Options
from service.api.dependencies import OpenCall
from service.api.generation.admission import max_tokens_of, sampling_of
from service.api.generation.chat_prompt import Conversational, chat_prompt, conversation_of
from service.api.generation.completion_prompts import completion_prompts
from service.api.generation.images import made_prompt
from service.api.http.call import Call
from service.api.http.receive import json_body
from service.api.openapi.responses import BODY_ERRORS, answers, list_of
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.generation import GenerationRequest
from service.api.served import ServedModel

router = APIRouter(tags=["tokens"])


@router.post("/v1/chat/completions/render", responses=answers(RenderedPrompt, *BODY_ERRORS))
async def render_chat_completion(
    call: OpenCall,
    body: Annotated[ChatCompletionRequest, Depends(json_body(ChatCompletionRequest))],
) -> Response:
    """Return the token ids that a chat would be answered with.

    Deviations: of images, only their places.

    Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/serve/render/api_router.py
    """
    model = await call.generating(body.model)
    return json_answer(await rendered_chat(call, model, body, f"chatcmpl-{call.id}") | _as_stated(body))


@router.post("/v1/completions/render", responses=list_of(RenderedPrompt, *BODY_ERRORS))
async def render_completion(
    call: OpenCall,
    body: Annotated[CompletionRequest, Depends(json_body(CompletionRequest))],
) -> Response:
    """Return the token ids of each prompt that a completion would continue.

    Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/serve/render/api_router.py
    """
    model = await call.generating(body.model)
    prompts = await call.make_prompt(completion_prompts, body, model)
    options = body.options()
    names = [f"cmpl-{call.id}"] if len(prompts) == 1 else [f"cmpl-{call.id}-{index}" for index in range(len(prompts))]
    return json_answer(
        [
            engine_request(call, model, options, name, ids, param="prompt", default_max_tokens=DEFAULT_MAX_TOKENS)
            | _as_stated(body)
            for name, ids in zip(names, prompts, strict=True)
        ]
    )


async def rendered_chat(call: Call, model: ServedModel, body: Conversational, name: str) -> dict[str, Any]:
    """Return what an engine would get for a chat; raises as `chat_prompt` and `engine_request`."""
    conversation = conversation_of(body, call.seal_key)
    prompt, _ = await made_prompt(call, model, body, chat_prompt, cache_salt=call.cache_salt, is_answered=False)
    call.ignore(prompt.ignored)
    return engine_request(call, model, conversation.options, name, prompt.ids, param=conversation.at)


def _as_stated(body: GenerationRequest) -> dict[str, Any]:
    return {"stream_options": body.stream_options, "return_token_ids": body.return_token_ids}


def engine_request(
    call: Call,
    model: ServedModel,
    options: Options,
    name: str,
    prompt_ids: Sequence[int],
    *,
    param: str,
    default_max_tokens: int | None = None,
) -> dict[str, Any]:
    """Return what an engine would get for a prompt, as vLLM's `GenerateRequest` states it.

    Args:
        call: the HTTP request.
        model: the model that would answer.
        options: the request's.
        name: what vLLM calls the request's id.
        prompt_ids: the rendered prompt.
        param: the field that the prompt came from.
        default_max_tokens: if neither the request nor DEFAULT_MAX_TOKENS sets one; None for the rest of the context.

    Raises:
        InvalidParameter: the prompt is empty, or a token id is not the model's.
        ContextLengthExceeded: the context has no room for the tokens requested.
    """
    options.check_token_ids(model.vocab_size)
    sampling = sampling_of(options, model, call.api)
    return {
        "request_id": name,
        "token_ids": list(prompt_ids),
        "token_offsets": None,
        "features": None,  # of images and audio
        "sampling_params": {
            "n": options.n,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": options.seed,
            "stop": options.stop,
            "stop_token_ids": options.stop_token_ids,
            "ignore_eos": options.ignore_eos,
            "max_tokens": max_tokens_of(call, model, options, prompt_ids, param=param, default=default_max_tokens),
            "min_tokens": options.min_tokens,
            "logprobs": options.num_logprobs,
            "prompt_logprobs": options.num_prompt_logprobs,
        },
        "model": options.model,
        "stream": options.stream,
        "stream_options": None,
        "return_token_ids": False,
        "cache_salt": options.cache_salt,
        "priority": options.priority,
        "kv_transfer_params": None,
    }


def json_answer(answer: Any) -> Response:
    """Return an answer that may hold many token ids."""
    return Response(to_json(answer), media_type="application/json")
