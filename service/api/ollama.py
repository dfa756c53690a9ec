"""Ollama's routes for chats, continuations and vectors: its JSON around the requests of OpenAI's interface.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response
from pydantic_core import from_json, to_json

from service.api.answers.generation import TokenLogprob
from service.api.answers.ollama import (
    AnsweredMessage,
    AnswerFacts,
    Durations,
    MessagePart,
    OllamaChat,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaFunction,
    OllamaGenerated,
)
from service.api.conversation import Options
from service.api.dependencies import OpenCall
from service.api.generation.answer import answer
from service.api.generation.logprobs import chat_logprobs
from service.api.generation.message import MessageParts
from service.api.generation.started import start_chat, start_completion
from service.api.generation.streams import TextDelta, TextStreams
from service.api.http.call import Call
from service.api.http.json_lines import JsonLineStream
from service.api.http.receive import json_body
from service.api.openapi.responses import GENERATION_ERRORS, answers
from service.api.schema.ollama import (
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaRequest,
)
from service.api.served import ServedEncoder, ServedModel
from service.api.vectors.encoding import encode_body, token_ids
from service.api.vectors.numbers import cut, size_of
from service.engine.request import FinishReason
from service.errors import UnknownModel

router = APIRouter(tags=["ollama"])

LATEST = ":latest"  # the tag of a model whose name has none
NANOSECONDS = 10**9

type Answer = OllamaChat | OllamaGenerated


@router.post("/api/chat", responses=answers(OllamaChat, *GENERATION_ERRORS, lines=OllamaChat))
async def chat_like_ollama(
    call: OpenCall,
    body: Annotated[OllamaChatRequest, Depends(json_body(OllamaChatRequest))],
) -> Response:
    """Answer a chat, as Ollama does; without messages, load the model.

    Deviations: options that are not stated are the operator's or the model's, not Ollama's; a chat that is
    longer than the context is refused; `num_ctx` and `keep_alive` have no effect.

    Source: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-a-chat-completion
    """
    model, load_s = await _timed(call.generating, body.model)
    if not body.messages and not call.has_long_body:
        return _loaded(body)
    return await _answer(call, model, body, await _started_chat(call, model, body), load_s)


@router.post("/api/generate", responses=answers(OllamaGenerated, *GENERATION_ERRORS, lines=OllamaGenerated))
async def generate_like_ollama(
    call: OpenCall,
    body: Annotated[OllamaGenerateRequest, Depends(json_body(OllamaGenerateRequest))],
) -> Response:
    """Answer a prompt, as Ollama does, or continue it (`raw`, `suffix`); without a prompt, load the model.

    Deviations: those of /api/chat; `template` has no effect, and `context` is refused and not returned.

    Source: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-a-completion
    """
    model, load_s = await _timed(call.generating, body.model)
    if not (body.prompt or body.suffix or body.images) and not call.has_long_body:
        return _loaded(body)
    # A model without a chat template takes no messages; Ollama's template of such a model is only the prompt.
    is_continuation = body.is_continuation or model.chat_template is None
    start = _started_completion if is_continuation else _started_chat
    return await _answer(call, model, body, await start(call, model, body), load_s)


@router.post("/api/embed", responses=answers(OllamaEmbeddings, *GENERATION_ERRORS))
async def embed_like_ollama(
    call: OpenCall,
    body: Annotated[OllamaEmbedRequest, Depends(json_body(OllamaEmbedRequest))],
) -> Response:
    """Return the vector of each text, as Ollama does.

    Deviations: vectors have length 1 only if the model's own files say so.

    Source: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-embeddings
    """
    model, load_s = await _timed(call.encoding, body.model)
    vectors, num_tokens = await _vectors(call, model, body)
    facts = {"model": body.model, "prompt_eval_count": num_tokens, **_durations(call, load_s)}
    return Response(to_json({**facts, "embeddings": vectors}), media_type="application/json")


@router.post("/api/embeddings", responses=answers(OllamaEmbedding, *GENERATION_ERRORS))
async def embed_like_older_ollama(
    call: OpenCall,
    body: Annotated[OllamaEmbedRequest, Depends(json_body(OllamaEmbedRequest))],
) -> Response:
    """Return the vector of a text, as older versions of Ollama do.

    Source: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-embedding
    """
    model, _ = await _timed(call.encoding, body.model)
    vectors, _ = await _vectors(call, model, body)
    return Response(to_json({"embedding": vectors[0] if vectors else []}), media_type="application/json")


class _Started(NamedTuple):
    """An answer that is being generated."""

    options: Options
    streams: TextStreams
    parts: MessageParts


async def _started_chat(call: Call, model: ServedModel, body: OllamaChatRequest | OllamaGenerateRequest) -> _Started:
    chat = await start_chat(call, model, body, prefix="chat-")
    return _Started(chat.options, chat.streams, MessageParts(chat.rules))


async def _started_completion(call: Call, model: ServedModel, body: OllamaGenerateRequest) -> _Started:
    if body.think is not None:
        call.ignore(["think"])
    begun = await start_completion(call, model, body, prefix="gen-")
    return _Started(begun.options, begun.streams, MessageParts(begun.rules))


async def _answer(call: Call, model: ServedModel, body: OllamaRequest, started: _Started, load_s: float) -> Response:
    writer = _OllamaAnswer(call, model, body, started, load_s)
    respond = partial(JsonLineStream, nothing=writer.part({"content": ""}))
    return await answer(call, started.streams, started.options, writer, respond)


@dataclass
class _OpenCall:
    """A call of a function whose arguments come to be."""

    id: str
    name: str
    arguments: str


class _OllamaAnswer:
    """An answer as it comes to be."""

    def __init__(self, call: Call, model: ServedModel, body: OllamaRequest, started: _Started, load_s: float) -> None:
        self._call, self._model, self._body, self._load_s = call, model, body, load_s
        self._streams, self._parts = started.streams, started.parts
        self._tool_call: _OpenCall | None = None  # whose arguments are not complete yet
        self._num_calls = 0

    async def events(self) -> AsyncIterator[Sequence[Answer]]:
        """Yield the objects of a stream."""
        async for _, delta in self._streams.deltas():
            objects = [self.part(message) for message in self._push(delta)]
            if logprobs := self._logprobs([delta]):
                objects = objects or [self.part({"content": ""})]
                objects[0]["logprobs"] = logprobs
            if delta.finish_reason is not None:
                objects.append(self.part({"content": ""}, self._end(delta)))
            if objects:
                yield objects

    def whole(self, collected: Sequence[Sequence[TextDelta]]) -> Answer:
        """Return the answer as one object."""
        [deltas] = collected
        message: MessagePart = {"content": ""}
        for part in (part for delta in deltas for part in self._push(delta)):
            if "content" in part:
                message["content"] = message.get("content", "") + part["content"]
            if "thinking" in part:
                message["thinking"] = message.get("thinking", "") + part["thinking"]
            if "tool_calls" in part:
                message["tool_calls"] = [*message.get("tool_calls", ()), *part["tool_calls"]]
        facts = self._end(deltas[-1])
        if logprobs := self._logprobs(deltas):
            facts["logprobs"] = logprobs
        return self.part(message, facts)

    def part(self, message: MessagePart, facts: AnswerFacts | None = None) -> Answer:
        """Return an object with some of the message, or all of it."""
        return _stated(self._body, message, facts or {"done": False})

    def _push(self, delta: TextDelta) -> Iterator[MessagePart]:
        """Yield the parts of the message that the next text completes: texts at once, and calls as a whole."""
        for part in self._parts.push(delta):
            for call in part.get("tool_calls", ()):
                if "id" in call:
                    yield from self._complete_call()
                    function = call["function"]
                    self._tool_call = _OpenCall(call["id"], function.get("name", ""), function["arguments"])
                elif self._tool_call is not None:
                    self._tool_call.arguments += call["function"]["arguments"]
            if "tool_calls" not in part:
                yield from self._complete_call()
                if "content" in part:
                    yield {"content": part["content"]}
                elif "reasoning" in part:
                    yield {"thinking": part["reasoning"]}
        if delta.finish_reason is not None:
            yield from self._complete_call()

    def _complete_call(self) -> Iterator[MessagePart]:
        """Yield the call that has ended, unless a limit cut it."""
        call, self._tool_call = self._tool_call, None
        if call is None:
            return
        with contextlib.suppress(ValueError):
            arguments = from_json(call.arguments)
            function = OllamaFunction(index=self._num_calls, name=call.name, arguments=arguments)
            self._num_calls += 1
            yield {"tool_calls": [{"id": call.id, "function": function}]}

    def _logprobs(self, deltas: Sequence[TextDelta]) -> list[TokenLogprob]:
        if not self._body.logprobs:
            return []
        tokens = [token for delta in deltas for token in delta.content_tokens]
        return chat_logprobs(self._model.tokenizer, tokens)["content"]

    def _end(self, last: TextDelta) -> AnswerFacts:
        usage, clock = self._streams.usage(), self._call.clocks[-1]
        end_s = clock.last_token_s or time.perf_counter()
        first_s = clock.first_token_s or end_s
        return {
            "done": True,
            "done_reason": "stop" if last.finish_reason is FinishReason.STOP else "length",
            **_durations(self._call, self._load_s),
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": _nanoseconds(first_s - (clock.scheduled_s or clock.submitted_s)),
            "eval_count": usage["completion_tokens"],
            "eval_duration": _nanoseconds(end_s - first_s),
        }


def _loaded(body: OllamaRequest) -> Response:
    """Return the answer to a request for nothing but a loaded model."""
    return JSONResponse(_stated(body, {"content": ""}, {"done": True, "done_reason": "load"}))


def _stated(body: OllamaRequest, message: MessagePart, facts: AnswerFacts) -> Answer:
    """Return an object as the answers to chats, or those to prompts, have it."""
    model, created_at = body.model, datetime.now(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(body, OllamaChatRequest):
        stated: AnsweredMessage = {"role": "assistant", "content": "", **message}
        return OllamaChat(model=model, created_at=created_at, message=stated, **facts)
    made = OllamaGenerated(model=model, created_at=created_at, response=message.get("content", ""), **facts)
    if "thinking" in message:
        made["thinking"] = message["thinking"]
    return made


async def _timed[M](load: Callable[[str], Awaitable[M]], name: str) -> tuple[M, float]:
    """Return a model, whose name may have the tag of the latest, and the seconds that it took to load."""
    begin_s = time.perf_counter()
    try:
        model = await load(name)
    except UnknownModel:
        if not name.endswith(LATEST):
            raise
        model = await load(name.removesuffix(LATEST))
    return model, time.perf_counter() - begin_s


async def _vectors(call: Call, model: ServedEncoder, body: OllamaEmbedRequest) -> tuple[list[list[float]], int]:
    """Return the vectors of texts, none for none, and the number of tokens."""
    if not body.input:
        return [], 0
    size = size_of(body.dimensions, model.vectors)
    texts = await token_ids(call, model, body)
    vectors = cut(await encode_body(call, model, body, texts), size, is_normalized=model.vectors.is_normalized)
    return await call.run_in_thread(vectors.tolist), sum(map(len, texts))


def _durations(call: Call, load_s: float) -> Durations:
    total_s = time.perf_counter() - call.arrived_s
    return {"total_duration": _nanoseconds(total_s), "load_duration": _nanoseconds(load_s)}


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * NANOSECONDS))
