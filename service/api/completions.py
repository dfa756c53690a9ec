"""POST /v1/completions."""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.admission import off_the_loop, start
from service.api.body import json_body
from service.api.dependencies import Exchange, ServedModel, check_name, exchange_of
from service.api.disconnect import unless_disconnected
from service.api.generation import Generation, collect
from service.api.schema import CompletionRequest
from service.api.sse import EventStream
from service.errors import InvalidParameter

router = APIRouter()

DEFAULT_MAX_TOKENS = 16  # OpenAI's
# A text below this is tokenized faster than a thread is asked to.
SHORT_PROMPT_CHARS = 2048


@router.post("/v1/completions")
async def create_completion(
    exchange: Annotated[Exchange, Depends(exchange_of)],
    body: Annotated[CompletionRequest, Depends(json_body(CompletionRequest))],
) -> Response:
    """Continue a text.

    Deviations: `prompt` is required, and is one text or one list of token ids; one choice only (`unsupported_fields`
    lists what is refused); `completion_tokens` leaves out the stop token; a stream begins with the first token.

    Source: https://platform.openai.com/docs/api-reference/completions/create
    """
    check_name(body.model, exchange.model)
    if isinstance(body.prompt, str) and len(body.prompt) > SHORT_PROMPT_CHARS:
        prompt_ids = await off_the_loop(exchange, lambda: _prompt_ids(body, exchange.model))
    else:
        prompt_ids = _prompt_ids(body, exchange.model)
    generation = start(exchange, body, prompt_ids, prefix="cmpl", param="prompt", default_max_tokens=DEFAULT_MAX_TOKENS)
    head = {
        "id": generation.request.id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model,
    }
    if body.stream:
        return EventStream(generation, _chunks(generation, body, head))
    with generation:
        text, token_ids, finish_reason = await unless_disconnected(exchange.receive, collect(generation))
    ids = {"prompt_token_ids": list(prompt_ids), "token_ids": token_ids} if body.return_token_ids else {}
    return JSONResponse({**head, "choices": [_choice(text, finish_reason) | ids], "usage": generation.usage()})


def _prompt_ids(body: CompletionRequest, model: ServedModel) -> list[int]:
    if isinstance(body.prompt, str):
        return model.tokenizer.encode(body.prompt, add_special_tokens=True, limit_tokens=model.max_model_len)
    for i, token_id in enumerate(body.prompt):
        if not 0 <= token_id < model.vocab_size:
            raise InvalidParameter(
                f"Invalid 'prompt[{i}]': a token id is at least 0 and less than {model.vocab_size}.",
                param=f"prompt[{i}]",
            )
    return list(body.prompt)


def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


async def _chunks(
    generation: Generation, body: CompletionRequest, head: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the text as it comes, the reason of the end, and the usage if it was asked for."""
    usage = {"usage": None} if body.includes_usage else {}
    prompt_ids = {"prompt_token_ids": list(generation.request.prompt_ids)} if body.return_token_ids else {}
    async for piece in generation.pieces():
        ids = {**prompt_ids, "token_ids": list(piece.token_ids)} if body.return_token_ids else {}
        if piece.text or (ids and piece.token_ids):
            prompt_ids = {}
            yield {**head, "choices": [_choice(piece.text, None) | ids], **usage}
        if piece.finish_reason is not None:
            yield {**head, "choices": [_choice("", str(piece.finish_reason)) | prompt_ids], **usage}
    if body.includes_usage:
        yield {**head, "choices": [], "usage": generation.usage()}
