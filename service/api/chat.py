"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.dependencies import Exchange, ServedModel, check_name, exchange_of
from service.api.generation.admission import off_the_loop, start
from service.api.generation.choices import Choices
from service.api.generation.conversation import conversation
from service.api.generation.generation import Piece
from service.api.generation.logprobs import chat_logprobs, write_prompt_logprobs
from service.api.http.body import json_body
from service.api.http.cancellation import unless_disconnected
from service.api.http.sse import EventStream
from service.api.schema.chat import ChatCompletionRequest
from service.errors import InvalidParameter
from service.text.tokenizer import Tokenizer

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(
    exchange: Annotated[Exchange, Depends(exchange_of)],
    body: Annotated[ChatCompletionRequest, Depends(json_body(ChatCompletionRequest))],
) -> Response:
    """Answer a conversation.

    Deviations: text only (`schema.chat` lists the refused fields); `n` is 8 at most; without a limit the answer
    may fill the context; `completion_tokens` and `logprobs` leave out the stop token; a stream begins with the first
    token; log-probabilities are the model's own, before temperature, bias and penalties.

    Source: https://platform.openai.com/docs/api-reference/chat/create
    """
    check_name(body.model, exchange.model)
    prompt_ids = await off_the_loop(exchange, lambda: _prompt_ids(body, exchange.model))
    choices = start(exchange, body, [prompt_ids], prefix="chatcmpl", param="messages", default_max_tokens=None)
    tokenizer = exchange.model.tokenizer
    if body.stream:
        return EventStream(choices, _chunks(choices, body, tokenizer))
    with choices:
        collected = await unless_disconnected(exchange.receive, choices.collect())

    def write() -> JSONResponse:
        answer = _head(choices, body, "chat.completion") | {
            "choices": [_choice(index, pieces, body, tokenizer) for index, pieces in enumerate(collected)],
            "usage": choices.usage(),
        }
        if body.return_token_ids:
            answer["prompt_token_ids"] = prompt_ids
        if body.prompt_logprobs is not None:
            of_prompt = collected[0][0].prompt_logprobs
            answer["prompt_logprobs"] = write_prompt_logprobs(tokenizer, prompt_ids, of_prompt, body.prompt_logprobs)
        return JSONResponse(answer)

    # Each place of a long prompt takes twenty times as long to write as a token of text.
    return await off_the_loop(exchange, write) if body.prompt_logprobs is not None else write()


def _choice(index: int, pieces: list[Piece], body: ChatCompletionRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    content = "".join(piece.text for piece in pieces)
    choice: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": content, "refusal": None},
        "logprobs": chat_logprobs(tokenizer, pieces) if body.logprobs else None,
        "finish_reason": str(pieces[-1].finish_reason),
    }
    if body.return_token_ids:
        choice["token_ids"] = [token_id for piece in pieces for token_id in piece.token_ids]
    return choice


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


def _head(choices: Choices, body: ChatCompletionRequest, kind: str) -> dict[str, Any]:
    return {"id": choices.id, "object": kind, "created": int(time.time()), "model": body.model}


async def _chunks(
    choices: Choices, body: ChatCompletionRequest, tokenizer: Tokenizer
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield of each choice the role, the text as it comes and the reason of the end; then the usage, if asked for."""
    head = _head(choices, body, "chat.completion.chunk")
    usage = {"usage": None} if body.includes_usage else {}

    def chunk(index: int, delta: dict[str, str], **facts: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **facts}
        return {**head, "choices": [choice], **usage}

    begun: set[int] = set()
    async for index, piece in choices.pieces():
        told: list[dict[str, Any]] = []
        if index not in begun:
            ids = {"prompt_token_ids": list(choices.prompt_ids(index))} if body.return_token_ids and not begun else {}
            begun.add(index)
            told.append(chunk(index, {"role": "assistant", "content": ""}) | ids)
        facts: dict[str, Any] = {}
        if body.return_token_ids:
            facts["token_ids"] = list(piece.token_ids)
        if body.logprobs and piece.token_ids:
            facts["logprobs"] = chat_logprobs(tokenizer, [piece])
        # A token that completes no character yet is told of only where tokens are asked for.
        if piece.text or (facts and piece.token_ids):
            told.append(chunk(index, {"content": piece.text}, **facts))
        if piece.finish_reason is not None:
            told.append(chunk(index, {}, finish_reason=str(piece.finish_reason)))
        if told:
            yield told
    if body.includes_usage:
        yield [{**head, "choices": [], "usage": choices.usage()}]
