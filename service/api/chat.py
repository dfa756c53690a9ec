"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.dependencies import Arrival, RequestContext, ServedModel, arrival
from service.api.generation.admission import submit
from service.api.generation.chat_prompt import chat_prompt
from service.api.generation.grammar import compiled_grammar
from service.api.generation.logprobs import chat_logprobs, is_long_to_write, prompt_logprobs
from service.api.generation.message import MessageParts, as_function_call, whole_message
from service.api.generation.streams import TextDelta, TextStreams
from service.api.generation.thinking import ChatThinking, chat_thinking
from service.api.generation.tool_use import ToolUse, tool_use
from service.api.http.receive import cancel_on_disconnect, json_body
from service.api.http.sse import EventStream
from service.api.openapi.responses import GENERATION_ERRORS, answers
from service.api.schema.chat import ChatCompletionRequest
from service.engine.request import FinishReason
from service.text.tokenizer import Tokenizer

router = APIRouter(tags=["generation"])


@router.post(
    "/v1/chat/completions", responses=answers("ChatCompletion", *GENERATION_ERRORS, events="ChatCompletionChunk")
)
async def create_chat_completion(
    arrived: Annotated[Arrival, Depends(arrival)],
    body: Annotated[ChatCompletionRequest, Depends(json_body(ChatCompletionRequest))],
) -> Response:
    """Answer a chat.

    Deviations: text only (`schema.chat` lists the refused fields); `n` is 8 at most; without a limit the answer may
    fill the context; `completion_tokens` and `logprobs` exclude the stop token; a stream begins with the first token;
    log-probabilities are the model's own, before temperature, bias and penalties.

    Source: https://platform.openai.com/docs/api-reference/chat/create
    """
    context = await arrived.generating(body.model)
    chat = await start_chat(context, body, prefix="chatcmpl-")
    prompt_ids, streams, tokenizer = chat.prompt_ids, chat.streams, chat.tokenizer
    if body.stream:
        return EventStream(_chunks(chat, body), sequences=streams, deadline=context.deadline)
    with streams:
        collected = await cancel_on_disconnect(context.receive, streams.collect())

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

    return await context.run_in_thread(write) if is_long_to_write(streams, body) else write()


class StartedChat(NamedTuple):
    """A chat whose answers are being generated."""

    prompt_ids: Sequence[int]
    streams: TextStreams
    use: ToolUse | None
    thinking: ChatThinking | None  # None if answers have none
    tokenizer: Tokenizer

    def message_parts(self) -> MessageParts:
        """Return the beginning of one choice's message."""
        return MessageParts(self.use, None if self.thinking is None else self.thinking.parser())


async def start_chat(context: RequestContext, body: ChatCompletionRequest, *, prefix: str) -> StartedChat:
    """Render a chat and submit its sequences; raises what `submit` raises, and for a request that is at fault."""
    # A function that another process can be sent.
    make_prompt = partial(chat_prompt, key=context.cache_salt)
    prompt_end, prompt_ids, ignored = await context.make_prompt(body, make_prompt)
    context.ignore(ignored)
    use = tool_use(body, context.model) if body.may_call_tools else None
    is_held = body.has_grammar or (use is not None and use.is_required)
    thinking = chat_thinking(prompt_end, body, context.model, is_held=is_held) if context.model.has_thinking else None
    grammar = await compiled_grammar(context, body, use) if body.has_grammar or use is not None else None
    streams = submit(
        context,
        body,
        [prompt_ids],
        prefix=prefix,
        param="messages",
        default_max_tokens=None,
        grammar=grammar if grammar is None or thinking is None else thinking.before(grammar),
        shown_ids=_shown_ids(context.model, use, thinking),
        thinking=None if thinking is None else thinking.parser,
    )
    return StartedChat(prompt_ids, streams, use, thinking, context.model.tokenizer)


def _shown_ids(model: ServedModel, use: ToolUse | None, thinking: ChatThinking | None) -> frozenset[int]:
    """Return the special tokens that the text must show, to be read and taken out again."""
    of_calls = frozenset[int]() if use is None else use.shown_ids(model)
    tags = frozenset[int]() if thinking is None else thinking.tag_ids
    return of_calls | (tags & model.tokenizer.special_ids)


def _head(streams: TextStreams, body: ChatCompletionRequest, kind: str) -> dict[str, Any]:
    return {
        "id": streams.id,
        "object": kind,
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": streams.system_fingerprint,
    }


def _choice(index: int, deltas: list[TextDelta], body: ChatCompletionRequest, chat: StartedChat) -> dict[str, Any]:
    parts, tokenizer = chat.message_parts(), chat.tokenizer
    message = whole_message(part for delta in deltas for part in parts.push(delta))
    if body.answers_with_function_call:
        message = as_function_call(message)
    finish_reason = deltas[-1].finish_reason
    assert finish_reason is not None, "the last delta has the finish reason"
    choice: dict[str, Any] = {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(tokenizer, deltas, as_ids=body.return_tokens_as_token_ids) if body.logprobs else None,
        "finish_reason": _finish_reason(parts, finish_reason, body),
        "stop_reason": deltas[-1].stop_reason,
        "token_ids": None,
    }
    if body.return_token_ids:
        choice["token_ids"] = [token_id for delta in deltas for token_id in delta.token_ids]
    return choice


def _finish_reason(parts: MessageParts, reason: FinishReason, body: ChatCompletionRequest) -> str:
    stated = parts.finish_reason(reason)
    return "function_call" if stated == "tool_calls" and body.answers_with_function_call else stated


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
    messages = [chat.message_parts() for _ in range(body.n)]
    async for index, delta in streams.deltas():
        chunks: list[dict[str, Any]] = []
        if index not in begun:
            ids = {"prompt_token_ids": list(streams.prompt_ids(index))} if body.return_token_ids and not begun else {}
            begun.add(index)
            chunks.append(chunk(index, {"role": "assistant", "content": ""}) | ids)
        fields: dict[str, Any] = {}
        if body.return_token_ids:
            fields["token_ids"] = list(delta.token_ids)
        if body.logprobs and delta.token_ids:
            fields["logprobs"] = chat_logprobs(tokenizer, [delta], as_ids=body.return_tokens_as_token_ids)
        parts = messages[index].push(delta)
        if body.answers_with_function_call:
            parts = [as_function_call(part) for part in parts]
        # A token that does not complete a character yet, or is held back, is sent only if tokens were requested.
        if not parts and fields and delta.token_ids:
            parts = [{"content": ""} if chat.use is None and chat.thinking is None else {}]
        # The tokens of one event are those of its first chunk.
        chunks += [chunk(index, part, **(fields if number == 0 else {})) for number, part in enumerate(parts)]
        if delta.finish_reason is not None:
            finish_reason = _finish_reason(messages[index], delta.finish_reason, body)
            chunks.append(chunk(index, {}, finish_reason=finish_reason, stop_reason=delta.stop_reason))
        if chunks:
            yield chunks
    if body.includes_usage:
        yield [{**head, "choices": [], "usage": streams.usage()}]
