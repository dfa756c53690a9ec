"""POST /v1/responses."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.chat import StartedChat, start_chat
from service.api.dependencies import Arrival, arrival
from service.api.generation.chat_prompt import chat_of, chat_prompt
from service.api.generation.logprobs import chat_logprobs, is_long_to_write
from service.api.generation.response_items import Event, ResponseOutput
from service.api.generation.sealed import seal
from service.api.generation.streams import TextDelta
from service.api.http.errors import errors_in_terms_of
from service.api.http.receive import cancel_on_disconnect, json_body
from service.api.http.sse import NamedEventStream
from service.api.render import engine_request, json_answer, request_id
from service.api.schema.responses import ResponsesRequest
from service.engine.request import FinishReason

router = APIRouter()


@router.post("/v1/responses")
async def create_response(
    arrived: Annotated[Arrival, Depends(arrival)],
    body: Annotated[ResponsesRequest, Depends(json_body(ResponsesRequest))],
) -> Response:
    """Answer with a response, which is not stored.

    Deviations: text only; tools that OpenAI runs itself are offered to nobody; nothing is stored, as with
    `store: false`; `strict` is false by default, and calls satisfy their schemas all the same; a stream's first events
    come with the first token.

    Source: https://platform.openai.com/docs/api-reference/responses/create
    """
    created_at = int(time.time())
    arrived.ignored.in_terms_of_request = body.in_terms_of_request
    context = await arrived.generating(body.model)
    with errors_in_terms_of(body.in_terms_of_request):
        chat_body = await context.convert(body, partial(chat_of, key=context.cache_salt))
        context.ignored.add(chat_body.ignored)
        chat = await start_chat(context, chat_body, prefix="resp_")
    answer = _Answer(chat, body, created_at, seal=partial(seal, key=context.cache_salt))
    if body.stream:
        events = _events(chat, body, answer)
        return NamedEventStream(events, sequences=chat.streams, deadline=context.deadline)
    with chat.streams, errors_in_terms_of(body.in_terms_of_request):
        [deltas] = await cancel_on_disconnect(context.receive, chat.streams.collect())

    def write() -> JSONResponse:
        for delta in deltas:
            answer.push(delta)
        return JSONResponse(answer.end())

    return await context.run_in_thread(write) if is_long_to_write(chat.streams, chat_body) else write()


async def _events(chat: StartedChat, body: ResponsesRequest, answer: "_Answer") -> AsyncIterator[Sequence[Event]]:
    """Yield the events of a stream, numbered."""
    with errors_in_terms_of(body.in_terms_of_request):
        async for events in _numbered_events(chat, answer):
            yield events


async def _numbered_events(chat: StartedChat, answer: "_Answer") -> AsyncIterator[Sequence[Event]]:
    number = 0

    def numbered(events: Iterable[Event]) -> list[Event]:
        nonlocal number
        result = [event | {"sequence_number": number + i} for i, event in enumerate(events)]
        number += len(result)
        return result

    async for _, delta in chat.streams.deltas():
        events: list[Event] = []
        if number == 0:
            begun = answer.response("in_progress")
            events = [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]
        events += answer.push(delta)
        if delta.finish_reason is not None:
            response = answer.end()
            events += [*answer.last_events, {"type": f"response.{response['status']}", "response": response}]
        if events:
            yield numbered(events)


class _Answer:
    """The response as it comes to be."""

    def __init__(self, chat: StartedChat, body: ResponsesRequest, created_at: int, seal: Callable[[str], str]) -> None:
        self.last_events: list[Event] = []  # of the items that `end` has closed
        self._chat = chat
        self._body = body
        self._created_at = created_at
        self._parts = chat.message_parts()
        self._output = ResponseOutput(body.offered_tools, seal if body.has_sealed_thinking else None)
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text is not complete yet
        self._reason = FinishReason.STOP

    def push(self, delta: TextDelta) -> list[Event]:
        """Add the next text and return its events."""
        if self._body.has_logprobs and delta.token_ids:
            self._logprobs += chat_logprobs(self._chat.tokenizer, [delta], as_ids=False)["content"]
        self._reason = delta.finish_reason or self._reason
        events: list[Event] = []
        for part in self._parts.push(delta):
            events += self._output.push(part, self._logprobs if "content" in part else [])
            self._logprobs = []
        return events

    def end(self) -> dict[str, Any]:
        """Close the last item and return the whole response."""
        self.last_events = list(self._output.close(self._reason))
        return self.response("incomplete" if self._reason is FinishReason.LENGTH else "completed")

    def response(self, status: str) -> dict[str, Any]:
        """Return the response with what it has so far."""
        body, is_over = self._body, status != "in_progress"
        sampling = self._chat.streams.sampling
        text_format = None if body.text is None else body.text.format
        choice = "auto" if body.tool_choice is None else body.tool_choice.as_stated()
        stated = {
            name: getattr(body, name)
            for name in (
                "frequency_penalty",
                "instructions",
                "max_output_tokens",
                "parallel_tool_calls",
                "presence_penalty",
                "prompt_cache_key",
            )
        }
        return {
            "id": self._chat.streams.id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": list(self._output.items) if is_over else [],
            "previous_response_id": None,
            "reasoning": {"effort": body.effort, "summary": None},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": False,
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
            **stated,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._chat.streams.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }


@router.post("/v1/responses/render")
async def render_response(
    name: Annotated[str, Depends(request_id)],
    arrived: Annotated[Arrival, Depends(arrival)],
    body: Annotated[ResponsesRequest, Depends(json_body(ResponsesRequest))],
) -> Response:
    """Return the token ids that a response would be answered with, as /v1/chat/completions/render does.

    Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/serve/render/api_router.py
    """
    arrived.ignored.in_terms_of_request = body.in_terms_of_request
    context = await arrived.generating(body.model)
    with errors_in_terms_of(body.in_terms_of_request):
        chat_body = await context.convert(body, partial(chat_of, key=context.cache_salt))
        context.ignored.add(chat_body.ignored)
        prompt = await context.make_prompt(chat_body, chat_prompt)
        context.ignore(prompt.ignored)
        return json_answer(engine_request(context, chat_body, f"resp_{name}", prompt.ids, param="messages"))
