"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from service.api.answers.generation import (
    AnswerHead,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
)
from service.api.dependencies import OpenCall
from service.api.generation.answer import answer
from service.api.generation.logprobs import chat_logprobs, logged_tokens, prompt_logprobs
from service.api.generation.message import MessageParts
from service.api.generation.started import StartedChat, start_chat
from service.api.generation.streams import TextDelta
from service.api.http.receive import json_body
from service.api.openapi.responses import GENERATION_ERRORS, answers
from service.api.schema.chat import ChatCompletionRequest

router = APIRouter(tags=["generation"])


@router.post("/v1/chat/completions", responses=answers(ChatCompletion, *GENERATION_ERRORS, events=ChatCompletionChunk))
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
    return await answer(call, chat.streams, chat.options, _ChatAnswer(chat, body))


class _ChatAnswer:
    """The choices of a chat as they come to be."""

    def __init__(self, chat: StartedChat, body: ChatCompletionRequest) -> None:
        self._chat, self._body, self._streams = chat, body, chat.streams
        self._created = int(time.time())

    def whole(self, collected: Sequence[Sequence[TextDelta]]) -> ChatCompletion:
        """Return the complete chat."""
        chat, body = self._chat, self._body
        document: ChatCompletion = {
            **self._head(),
            "object": "chat.completion",
            "choices": [self._choice(index, deltas) for index, deltas in enumerate(collected)],
            "usage": self._streams.usage(),
            "prompt_logprobs": None,
            "prompt_token_ids": list(chat.prompt_ids) if body.return_token_ids else None,
        }
        if (num_top := body.prompt_logprobs) is not None:
            computed = collected[0][0].prompt_logprobs
            document["prompt_logprobs"] = prompt_logprobs(chat.tokenizer, chat.prompt_ids, computed, num_top)
        return document

    async def events(self) -> AsyncIterator[list[ChatCompletionChunk]]:
        """Yield each choice's role, text and finish reason as they arrive, then the usage if requested."""
        body = self._body
        messages = [self._message() for _ in range(body.n)]
        begun: set[int] = set()
        async for index, delta in self._streams.deltas():
            chunks: list[ChatCompletionChunk] = []
            if index not in begun:
                first = self._chunk(index, {"role": "assistant", "content": ""})
                if body.return_token_ids and not begun:
                    first["prompt_token_ids"] = list(self._streams.prompt_ids(index))
                begun.add(index)
                chunks.append(first)
            chunks += self._push(index, delta, messages[index])
            if chunks:
                yield chunks
        if body.includes_usage:
            yield [{**self._head(), "object": "chat.completion.chunk", "choices": [], "usage": self._streams.usage()}]

    def _push(self, index: int, delta: TextDelta, message: MessageParts) -> list[ChatCompletionChunk]:
        """Return the chunks of the next text of a choice."""
        body, tokenizer = self._body, self._chat.tokenizer
        logged = logged_tokens(delta, has_ids=body.return_token_ids) if body.logprobs else ()
        parts = message.push(delta)
        # A token that does not complete a character yet, or is held back, is sent only if tokens were requested.
        if not parts and delta.finish_reason is None and (logged or (body.return_token_ids and delta.token_ids)):
            parts = [ChatDelta(content="") if self._chat.rules.reader is None else ChatDelta()]
        new = [self._chunk(index, part) for part in parts]
        if delta.finish_reason is not None:
            last = self._chunk(index, {})
            last["choices"][0]["finish_reason"] = message.finish_reason(delta.finish_reason)
            last["choices"][0]["stop_reason"] = delta.stop_reason
            new.append(last)
        if new:
            # The tokens of one event are those of its first chunk, and log-probabilities come with content.
            if body.return_token_ids:
                new[0]["choices"][0]["token_ids"] = delta.sampled_ids
            if logged:
                logprobs = chat_logprobs(tokenizer, logged, as_ids=body.return_tokens_as_token_ids)
                place = next((number for number, part in enumerate(parts) if part.get("content")), 0)
                new[0 if body.return_token_ids else place]["choices"][0]["logprobs"] = logprobs
        return new

    def _chunk(self, index: int, delta: ChatDelta) -> ChatCompletionChunk:
        choice: ChatChunkChoice = {
            "index": index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
        }
        usage = self._streams.usage_of_chunk(self._body)
        return {**self._head(), "object": "chat.completion.chunk", "choices": [choice], **usage}

    def _head(self) -> AnswerHead:
        return {
            "id": self._streams.id,
            "created": self._created,
            "model": self._body.model,
            "system_fingerprint": self._streams.system_fingerprint,
        }

    def _message(self) -> MessageParts:
        return MessageParts(self._chat.rules, has_function_call=self._body.answers_with_function_call)

    def _choice(self, index: int, deltas: Sequence[TextDelta]) -> ChatChoice:
        body, parts = self._body, self._message()
        message = parts.whole(deltas)
        finish_reason = deltas[-1].finish_reason
        assert finish_reason is not None, "the last delta has the finish reason"
        choice: ChatChoice = {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": parts.finish_reason(finish_reason),
            "stop_reason": deltas[-1].stop_reason,
            "token_ids": None,
        }
        if body.logprobs:
            logged = [token for delta in deltas for token in logged_tokens(delta, has_ids=body.return_token_ids)]
            choice["logprobs"] = chat_logprobs(self._chat.tokenizer, logged, as_ids=body.return_tokens_as_token_ids)
        if body.return_token_ids:
            choice["token_ids"] = [token_id for delta in deltas for token_id in delta.sampled_ids]
        return choice
