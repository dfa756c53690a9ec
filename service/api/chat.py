"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.admission import off_the_loop, start
from service.api.body import json_body
from service.api.conversation import conversation
from service.api.dependencies import Exchange, ServedModel, check_name, exchange_of
from service.api.disconnect import unless_disconnected
from service.api.generation import Generation, collect
from service.api.schema import ChatCompletionRequest
from service.api.sse import EventStream
from service.errors import InvalidParameter

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(
    exchange: Annotated[Exchange, Depends(exchange_of)],
    body: Annotated[ChatCompletionRequest, Depends(json_body(ChatCompletionRequest))],
) -> Response:
    """Answer a conversation.

    Deviations: one choice of text only (`unsupported_fields` lists what is refused); without a limit the answer may
    fill the context; `completion_tokens` leaves out the stop token; a stream begins with the first token.

    Source: https://platform.openai.com/docs/api-reference/chat/create
    """
    check_name(body.model, exchange.model)
    prompt_ids = await off_the_loop(exchange, lambda: _prompt_ids(body, exchange.model))
    generation = start(exchange, body, prompt_ids, prefix="chatcmpl", param="messages", default_max_tokens=None)
    if body.stream:
        return EventStream(generation, _chunks(generation, body))
    with generation:
        text, token_ids, finish_reason = await unless_disconnected(exchange.receive, collect(generation))
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    answer = _head(generation, body, "chat.completion") | {"choices": [choice], "usage": generation.usage()}
    if body.return_token_ids:
        choice["token_ids"] = token_ids
        answer["prompt_token_ids"] = list(generation.request.prompt_ids)
    return JSONResponse(answer)


def _prompt_ids(body: ChatCompletionRequest, model: ServedModel) -> list[int]:
    if model.chat_template is None:
        raise InvalidParameter(
            f"The model '{model.name}' has no chat template, so it takes no messages. "
            "Send a 'prompt' to /v1/completions.",
            param="messages",
        )
    text = model.chat_template.render(conversation(body.messages))
    # The template has written the special tokens already.
    return model.tokenizer.encode(text, add_special_tokens=False, param="messages", limit_tokens=model.max_model_len)


def _head(generation: Generation, body: ChatCompletionRequest, kind: str) -> dict[str, Any]:
    return {"id": generation.request.id, "object": kind, "created": int(time.time()), "model": body.model}


async def _chunks(generation: Generation, body: ChatCompletionRequest) -> AsyncIterator[dict[str, Any]]:
    """Yield the role, the text as it comes, the reason of the end, and the usage if it was asked for."""
    head = _head(generation, body, "chat.completion.chunk")
    usage = {"usage": None} if body.includes_usage else {}

    def chunk(delta: dict[str, str], finish_reason: str | None = None, **extensions: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **extensions}
        return {**head, "choices": [choice], **usage}

    is_first = True
    async for piece in generation.pieces():
        if is_first:
            is_first = False
            ids = {"prompt_token_ids": list(generation.request.prompt_ids)} if body.return_token_ids else {}
            yield chunk({"role": "assistant", "content": ""}) | ids
        if body.return_token_ids:
            if piece.text or piece.token_ids:
                yield chunk({"content": piece.text}, token_ids=list(piece.token_ids))
        elif piece.text:
            yield chunk({"content": piece.text})
        if piece.finish_reason is not None:
            yield chunk({}, str(piece.finish_reason))
    if body.includes_usage:
        yield {**head, "choices": [], "usage": generation.usage()}
