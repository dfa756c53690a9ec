"""POST /v1/completions."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.dependencies import Exchange, ServedModel, check_name, exchange_of
from service.api.generation.admission import off_the_loop, start
from service.api.generation.choices import Choices
from service.api.generation.completion_writer import CompletionWriter
from service.api.generation.generation import Piece
from service.api.http.body import json_body
from service.api.http.cancellation import unless_disconnected
from service.api.http.sse import EventStream
from service.api.schema.completions import CompletionRequest
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

    Deviations: `prompt` is required; `n` times the number of prompts is 64 at most; `best_of` must equal `n`;
    `logprobs` may be 20, and are the model's own, before temperature, bias and penalties; `completion_tokens` and
    `logprobs` leave out the stop token; a stream begins with the first token. `schema.completions` lists the refused
    fields.

    Source: https://platform.openai.com/docs/api-reference/completions/create
    """
    check_name(body.model, exchange.model)
    if sum(len(prompt) for prompt in body.prompt if isinstance(prompt, str)) > SHORT_PROMPT_CHARS:
        prompts = await off_the_loop(exchange, lambda: _encode_all(body, exchange.model))
    else:
        prompts = _encode_all(body, exchange.model)
    choices = start(
        exchange,
        body,
        prompts,
        prefix="cmpl",
        param="prompt",
        default_max_tokens=DEFAULT_MAX_TOKENS,
    )
    head = {"id": choices.id, "object": "text_completion", "created": int(time.time()), "model": body.model}
    writers = [
        CompletionWriter(index, body, prompt_ids, exchange.model.tokenizer)
        for index, prompt_ids in enumerate(ids for ids in prompts for _ in range(body.n))
    ]
    if body.stream:
        return EventStream(choices, _chunks(choices, writers, body, head))
    with choices:
        collected = await unless_disconnected(exchange.receive, choices.collect())

    def write() -> JSONResponse:
        written = [writer.write(pieces) for writer, pieces in zip(writers, collected, strict=True)]
        return JSONResponse({**head, "choices": written, "usage": choices.usage()})

    # Each place of a long prompt takes twenty times as long to write as a token of text.
    return await off_the_loop(exchange, write) if body.num_prompt_logprobs is not None else write()


def _encode_all(body: CompletionRequest, model: ServedModel) -> list[list[int]]:
    if len(body.prompt) == 1:
        return [_encode(body.prompt[0], model, "prompt")]
    return [_encode(prompt, model, f"prompt[{i}]") for i, prompt in enumerate(body.prompt)]


def _encode(prompt: str | tuple[int, ...], model: ServedModel, param: str) -> list[int]:
    if isinstance(prompt, str):
        limit_tokens = model.max_model_len
        return model.tokenizer.encode(prompt, add_special_tokens=True, param=param, limit_tokens=limit_tokens)
    for i, token_id in enumerate(prompt):
        if not 0 <= token_id < model.vocab_size:
            raise InvalidParameter(
                f"Invalid '{param}[{i}]': a token id is at least 0 and less than {model.vocab_size}.",
                param=f"{param}[{i}]",
            )
    return list(prompt)


async def _chunks(
    choices: Choices, writers: Sequence[CompletionWriter], body: CompletionRequest, head: dict[str, Any]
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the text as it comes, the reason of the end, and the usage if it was asked for."""
    usage = {"usage": None} if body.includes_usage else {}
    tells_tokens = body.return_token_ids or body.logprobs is not None
    async for index, piece in choices.pieces():
        parts = [piece]
        if piece.finish_reason is not None:
            parts = [replace(piece, finish_reason=None), Piece("", (), piece.finish_reason)]
        # A token that completes no character yet is told of only where tokens are asked for.
        told = [p for p in parts if p.text or p.finish_reason or (tells_tokens and p.token_ids)]
        if told:
            yield [{**head, "choices": [writers[index].write([part])], **usage} for part in told]
    if body.includes_usage:
        yield [{**head, "choices": [], "usage": choices.usage()}]
