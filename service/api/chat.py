"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.dependencies import OpenCall
from service.api.generation.chat_answers import StartedChat, start_chat
from service.api.generation.logprobs import chat_logprobs, is_long_to_write, logged_tokens, prompt_logprobs
from service.api.generation.message import MessageParts
from service.api.generation.streams import TextDelta, TextStreams
from service.api.http.receive import json_body
from service.api.http.sse import EventStream
from service.api.openapi.responses import GENERATION_ERRORS, answers
from service.api.schema.chat import ChatCompletionRequest

router = APIRouter(tags=["generation"])


@router.post(
    "/v1/chat/completions", responses=answers("ChatCompletion", *GENERATION_ERRORS, events="ChatCompletionChunk")
)
async def create_chat_completion(
    call: OpenCall,
    body: Annotated[ChatCompletionRequest, Depends(json_body(ChatCompletionRequest))],
) -> Response:
    """Answer a chat.

    Deviations: text, and images for a vision model (`schema.chat` lists the refused fields); `n` is 8 at most;
    without a limit the answer may fill the context; `completion_tokens` excludes the stop token, and `logprobs` are
    those of the content, or with `return_token_ids` of all tokens; a stream begins with the first token;
    log-probabilities are the model's own, before temperature, bias and penalties.

    Source: https://platform.openai.com/docs/api-reference/chat/create
    """
    model = await call.generating(body.model)
    chat = await start_chat(call, model, body, prefix="chatcmpl-")
    prompt_ids, streams, tokenizer = chat.prompt_ids, chat.streams, chat.tokenizer
    if body.stream:
        return EventStream(_chunks(chat, body), sequences=streams, deadline=call.deadline)
    with streams:
        collected = await call.unless_disconnected(streams.collect())

    def write() -> JSONResponse:
        answer = _head(streams, body, "chat.completion") | {
            "choices": [_choice(index, deltas, body, chat) for index, deltas in enumerate(collected)],
            "usage": streams.usage(),
            "prompt_logprobs": None,
            "prompt_token_ids": list(prompt_ids) if body.return_token_ids else None,
        }
        if body.prompt_logprobs is not None:
            computed = collected[0][0].prompt_logprobs
            answer["prompt_logprobs"] = prompt_logprobs(tokenizer, prompt_ids, computed, body.prompt_logprobs)
        return JSONResponse(answer)

    return await call.run_in_thread(write) if is_long_to_write(streams, body) else write()


def _head(streams: TextStreams, body: ChatCompletionRequest, kind: str) -> dict[str, Any]:
    return {
        "id": streams.id,
        "object": kind,
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": streams.system_fingerprint,
    }


def _choice(index: int, deltas: list[TextDelta], body: ChatCompletionRequest, chat: StartedChat) -> dict[str, Any]:
    parts, tokenizer = MessageParts(chat.rules, has_function_call=body.answers_with_function_call), chat.tokenizer
    message = parts.whole(deltas)
    finish_reason = deltas[-1].finish_reason
    assert finish_reason is not None, "the last delta has the finish reason"
    choice: dict[str, Any] = {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": parts.finish_reason(finish_reason),
        "stop_reason": deltas[-1].stop_reason,
        "token_ids": None,
    }
    if body.logprobs:
        logged = [token for delta in deltas for token in logged_tokens(delta, has_ids=body.return_token_ids)]
        choice["logprobs"] = chat_logprobs(tokenizer, logged, as_ids=body.return_tokens_as_token_ids)
    if body.return_token_ids:
        choice["token_ids"] = [token_id for delta in deltas for token_id in delta.sampled_ids]
    return choice


async def _chunks(chat: StartedChat, body: ChatCompletionRequest) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield each choice's role, text and finish reason as they arrive, then the usage if requested."""
    streams, tokenizer = chat.streams, chat.tokenizer
    head = _head(streams, body, "chat.completion.chunk")

    def chunk(index: int, delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
            **fields,
        }
        return {**head, "choices": [choice], **streams.usage_of_chunk(body)}

    begun: set[int] = set()
    messages = [MessageParts(chat.rules, has_function_call=body.answers_with_function_call) for _ in range(body.n)]
    async for index, delta in streams.deltas():
        chunks: list[dict[str, Any]] = []
        if index not in begun:
            ids = {"prompt_token_ids": list(streams.prompt_ids(index))} if body.return_token_ids and not begun else {}
            begun.add(index)
            chunks.append(chunk(index, {"role": "assistant", "content": ""}) | ids)
        of_tokens: dict[str, Any] = {"token_ids": delta.sampled_ids} if body.return_token_ids else {}
        logged = logged_tokens(delta, has_ids=body.return_token_ids) if body.logprobs else ()
        parts = messages[index].push(delta)
        # A token that does not complete a character yet, or is held back, is sent only if tokens were requested.
        if not parts and delta.finish_reason is None and (logged or (of_tokens and delta.token_ids)):
            parts = [{"content": ""} if chat.rules.reader is None else {}]
        new = [chunk(index, part) for part in parts]
        if delta.finish_reason is not None:
            finish_reason = messages[index].finish_reason(delta.finish_reason)
            new.append(chunk(index, {}, finish_reason=finish_reason, stop_reason=delta.stop_reason))
        if new:
            # The tokens of one event are those of its first chunk, and log-probabilities come with content.
            new[0]["choices"][0] |= of_tokens
            if logged:
                logprobs = chat_logprobs(tokenizer, logged, as_ids=body.return_tokens_as_token_ids)
                place = next((number for number, part in enumerate(parts) if part.get("content")), 0)
                new[0 if of_tokens else place]["choices"][0]["logprobs"] = logprobs
        chunks += new
        if chunks:
            yield chunks
    if body.includes_usage:
        yield [{**head, "choices": [], "usage": streams.usage()}]
