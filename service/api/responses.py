"""POST /v1/responses."""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Annotated, override

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from service.api.answers.generation import TokenLogprob
from service.api.answers.responses import ResponseEvent, ResponseObject, ResponseStatus, ResponseUsage
from service.api.answers.service import RenderedPrompt
from service.api.dependencies import OpenCall
from service.api.generation.answer import answer
from service.api.generation.logprobs import chat_logprobs
from service.api.generation.message import MessageParts
from service.api.generation.response_items import Event, ResponseOutput
from service.api.generation.sealed import seal
from service.api.generation.started import StartedChat, start_chat
from service.api.generation.streams import TextDelta
from service.api.http.call import Call
from service.api.http.errors import error_answer
from service.api.http.receive import json_body
from service.api.http.sse import NamedEventStream
from service.api.memory.memory import LAST_WRITE_S, Keeping, KeyMemory
from service.api.memory.store import UNFINISHED, new_id_prefix
from service.api.openapi.responses import BODY_ERRORS, GENERATION_ERRORS, answers
from service.api.render import json_answer, rendered_chat
from service.api.schema.responses import ResponsesRequest
from service.engine.request import FinishReason
from service.errors import ResponsesUnavailable

router = APIRouter()

SERVER_ERROR = 500  # and higher statuses: the request is not at fault


@router.post(
    "/v1/responses",
    tags=["generation"],
    responses=answers(ResponseObject, *GENERATION_ERRORS, events=ResponseEvent),
)
async def create_response(
    call: OpenCall,
    body: Annotated[ResponsesRequest, Depends(json_body(ResponsesRequest))],
    memory: KeyMemory,
) -> Response:
    """Answer with a response, which is kept unless `store` is false, and which `previous_response_id` continues.

    Deviations: text and images only; tools that OpenAI runs itself are offered to nobody; `strict` is false by default,
    and calls satisfy their schemas all the same; a stream's first events come with the first token; a response in the
    background is not streamed. Where nothing can be kept, the answer is given all the same, and its `store` is false.

    Source: https://platform.openai.com/docs/api-reference/responses/create
    """
    created_at = int(time.time())
    model = await call.generating(body.model)
    body = await memory.continued(call, body)
    chat = await start_chat(call, model, body, prefix=new_id_prefix())
    keeping, key = memory.keeping(call, body, chat.streams.id), call.seal_key
    writer = _ResponseAnswer(chat, body, created_at, keeping, seal=partial(seal, key=key))
    if body.background:
        return await begin_in_background(call, chat, writer)
    with contextlib.nullcontext() if body.stream else writer.kept():
        return await answer(call, chat.streams, chat.options, writer, NamedEventStream, keep=keeping.write)


async def begin_in_background(call: Call, chat: StartedChat, writer: "_ResponseAnswer") -> Response:
    """Answer that a response has begun; it goes on once that is sent, as part of the request."""
    queued = writer.response("queued")
    async with contextlib.AsyncExitStack() as ends:
        ends.enter_context(chat.streams)
        await ends.enter_async_context(writer.keeping.claimed())
        await writer.keeping.write_state(queued)
        return _Queued(queued, ends.pop_all(), lambda: _make_in_background(call, chat, writer))


class _Queued(JSONResponse):
    """The answer to a request whose work goes on, and ends here, also where the answer cannot be sent."""

    def __init__(
        self, queued: ResponseObject, ends: contextlib.AsyncExitStack, work: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(queued)
        self._ends, self._work = ends, work

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._ends:
            await super().__call__(scope, receive, send)
            await self._work()


async def _make_in_background(call: Call, chat: StartedChat, writer: "_ResponseAnswer") -> None:
    async def make() -> None:
        async for _, delta in chat.streams.deltas():
            is_first = writer.status == "queued"
            writer.push(delta)
            if is_first:
                with contextlib.suppress(ResponsesUnavailable):  # the next state is written all the same
                    await writer.keeping.write_state(writer.response(writer.status))

    with writer.kept():
        try:
            if not await writer.keeping.until_ended(call.deadline.within(make())):
                return
            response = writer.end()
        except Exception as error:
            failure = error_answer(error, chat.streams.id)
            call.log_fields["error_code"] = failure.body["error"]["code"]
            code = "server_error" if failure.status >= SERVER_ERROR else "invalid_prompt"
            response = writer.response("failed")
            response["error"] = {"code": code, "message": failure.body["error"]["message"]}
        await writer.keeping.write_state(response, within_s=LAST_WRITE_S)


class _ResponseAnswer:
    """The response as it comes to be."""

    def __init__(
        self,
        chat: StartedChat,
        body: ResponsesRequest,
        created_at: int,
        keeping: Keeping,
        seal: Callable[[str], str],
    ) -> None:
        self._last_events: list[Event] = []  # of the items that `end` has closed
        self.keeping = keeping
        self.status: ResponseStatus = "queued" if body.background else "in_progress"
        self._chat = chat
        self._body = body
        self._created_at = created_at
        self._parts = MessageParts(chat.rules)
        self._output = ResponseOutput(body.offered_tools, seal if body.has_sealed_thinking else None)
        self._logprobs: list[TokenLogprob] = []  # of tokens whose text is not complete yet
        self._reason = FinishReason.STOP

    def whole(self, collected: Sequence[Sequence[TextDelta]]) -> ResponseObject:
        """Return the complete response."""
        [deltas] = collected
        for delta in deltas:
            self.push(delta)
        return self.end()

    async def events(self) -> AsyncIterator[Sequence[Event]]:
        """Yield the events of a stream; the response is kept before the last one."""
        number = 0

        def numbered(events: Iterable[Event]) -> list[Event]:
            nonlocal number
            result = [event | {"sequence_number": number + i} for i, event in enumerate(events)]
            number += len(result)
            return result

        with self.kept():
            async for _, delta in self._chat.streams.deltas():
                events: list[Event] = []
                if number == 0:
                    begun = self.response("in_progress")
                    events = [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]
                events += self.push(delta)
                if delta.finish_reason is not None:
                    response = self.end()
                    yield numbered([*events, *self._last_events])
                    await self.keeping.write(response)
                    events = [{"type": f"response.{response['status']}", "response": response}]
                if events:
                    yield numbered(events)

    def push(self, delta: TextDelta) -> list[Event]:
        """Add the next text and return its events."""
        if self._body.has_logprobs and delta.content_tokens:
            self._logprobs += chat_logprobs(self._chat.tokenizer, delta.content_tokens)["content"]
        self._reason = delta.finish_reason or self._reason
        self.status = "in_progress"
        events: list[Event] = []
        for part in self._parts.push(delta):
            is_content = "content" in part
            events += self._output.push(part, self._logprobs if is_content else [])
            self._logprobs = [] if is_content else self._logprobs
        return events

    def end(self) -> ResponseObject:
        """Close the last item and return the whole response."""
        self._last_events = list(self._output.close(self._reason))
        return self.response("incomplete" if self._reason is FinishReason.LENGTH else "completed")

    def kept(self) -> AbstractContextManager[None]:
        """Let other requests find the response by its id until it is complete."""
        return self.keeping.found_as(lambda status: self.response(status or self.status))

    def response(self, status: ResponseStatus) -> ResponseObject:
        """Return the response with what it has so far."""
        body, is_over = self._body, status not in UNFINISHED
        sampling = self._chat.streams.sampling
        text_format = None if body.text is None else body.text.format
        choice = "auto" if body.tool_choice is None else body.tool_choice.as_stated()
        return {
            "id": self._chat.streams.id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": body.background,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": list(self._output.items) if is_over else [],
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.stated_effort, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": self.keeping.is_kept,
            "temperature": sampling.temperature,
            "text": {
                "format": text_format.model_dump(by_alias=True) if text_format else {"type": "text"},
                "verbosity": "medium",
            },
            "tool_choice": choice,
            "tools": [tool.as_stated() for tool in body.tools if tool.is_offered],
            "top_logprobs": body.top_logprobs,
            "top_p": sampling.top_p,
            "truncation": body.truncation,
            "usage": self._usage() if is_over else None,
            "user": body.user,
            "frequency_penalty": body.frequency_penalty,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "parallel_tool_calls": body.parallel_tool_calls,
            "presence_penalty": body.presence_penalty,
            "prompt_cache_key": body.prompt_cache_key,
        }

    def _usage(self) -> ResponseUsage:
        usage = self._chat.streams.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
            "total_tokens": usage["total_tokens"],
        }


@router.post("/v1/responses/render", tags=["tokens"], responses=answers(RenderedPrompt, *BODY_ERRORS))
async def render_response(
    call: OpenCall,
    body: Annotated[ResponsesRequest, Depends(json_body(ResponsesRequest))],
    memory: KeyMemory,
) -> Response:
    """Return the token ids that a response would be answered with, as /v1/chat/completions/render does.

    Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/serve/render/api_router.py
    """
    model = await call.generating(body.model)
    body = await memory.continued(call, body)
    return json_answer(await rendered_chat(call, model, body, f"resp_{call.id}"))
