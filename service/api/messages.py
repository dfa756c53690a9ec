"""POST /v1/messages, /v1/messages/count_tokens and /v1/messages/render: Anthropic's interface."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from service.api.answers.messages import (
    AnswerBlock,
    MessageEnd,
    MessageEvent,
    MessageObject,
    MessageTokens,
    MessageUsageSoFar,
)
from service.api.answers.service import RenderedPrompt
from service.api.dependencies import OpenCall
from service.api.generation.answer import answer
from service.api.generation.images import made_prompt
from service.api.generation.message import MessageParts
from service.api.generation.message_content import Event, MessageContent
from service.api.generation.sealed import seal, sign
from service.api.generation.started import StartedChat, start_chat
from service.api.generation.streams import TextDelta
from service.api.generation.token_answers import count_tokens
from service.api.http.receive import json_body
from service.api.http.sse import MessageStream
from service.api.openapi.responses import BODY_ERRORS, GENERATION_ERRORS, answers
from service.api.render import json_answer, rendered_chat
from service.api.schema.messages import CountTokensRequest, MessagesRequest
from service.engine.request import FinishReason

router = APIRouter()

NO_END: MessageEnd = {"stop_reason": None, "stop_sequence": None, "stop_details": None}


@router.post(
    "/v1/messages", tags=["generation"], responses=answers(MessageObject, *GENERATION_ERRORS, events=MessageEvent)
)
async def create_message(
    call: OpenCall,
    body: Annotated[MessagesRequest, Depends(json_body(MessagesRequest))],
) -> Response:
    """Answer with a message.

    Deviations: text and images only; tools that Anthropic runs are offered to nobody; without `thinking` the model's
    chat template decides whether it thinks; `budget_tokens` is not enforced; cached prefixes are found without
    `cache_control`, and keeping one has no price. A stream's first events come with the first token.

    Source: https://docs.anthropic.com/en/api/messages
    """
    model = await call.generating(body.model)
    chat = await start_chat(call, model, body, prefix="msg_")
    return await answer(call, chat.streams, chat.options, _MessageAnswer(chat, body, call.seal_key), MessageStream)


@router.post("/v1/messages/count_tokens", tags=["tokens"], responses=answers(MessageTokens, *BODY_ERRORS))
async def count_message_tokens(
    call: OpenCall,
    body: Annotated[CountTokensRequest, Depends(json_body(CountTokensRequest))],
) -> Response:
    """Return the number of tokens of a message's prompt, which may be longer than the context.

    Source: https://docs.anthropic.com/en/api/messages-count-tokens
    """
    model = await call.generating(body.model)
    counted, _ = await made_prompt(call, model, body, count_tokens, cache_salt=call.cache_salt, is_answered=False)
    return Response(counted, media_type="application/json")


@router.post("/v1/messages/render", tags=["tokens"], responses=answers(RenderedPrompt, *BODY_ERRORS))
async def render_message(
    call: OpenCall,
    body: Annotated[MessagesRequest, Depends(json_body(MessagesRequest))],
) -> Response:
    """Return the token ids that a message would be answered with, as /v1/chat/completions/render does.

    Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/serve/render/api_router.py
    """
    model = await call.generating(body.model)
    return json_answer(await rendered_chat(call, model, body, f"msg_{call.id}"))


class _MessageAnswer:
    """The message as it comes to be."""

    def __init__(self, chat: StartedChat, body: MessagesRequest, key: bytes) -> None:
        self._chat = chat
        self._model = body.model
        self._parts = MessageParts(chat.rules)
        prove = sign if body.shows_thinking else seal
        self._content = MessageContent(lambda text: prove(text, key), shows_thinking=body.shows_thinking)
        self._end = NO_END

    async def events(self) -> AsyncIterator[Sequence[Event]]:
        """Yield the events of a stream."""
        has_begun = False
        async for _, delta in self._chat.streams.deltas():
            events: list[Event] = []
            if not has_begun:
                has_begun = True
                events.append({"type": "message_start", "message": self._message([], NO_END)})
            events += self._push(delta)
            if delta.finish_reason is not None:
                end = {"type": "message_delta", "delta": self._end, "usage": self._usage()}
                events += [end, {"type": "message_stop"}]
            if events:
                yield events

    def whole(self, collected: Sequence[Sequence[TextDelta]]) -> MessageObject:
        """Return the complete message."""
        [deltas] = collected
        for delta in deltas:
            self._push(delta)
        return self._message(self._content.blocks, self._end)

    def _push(self, delta: TextDelta) -> list[Event]:
        """Add the next text and return its events, with the last text those that end its block too."""
        events = [event for part in self._parts.push(delta) for event in self._content.push(part)]
        if delta.finish_reason is not None:
            events += self._content.close()
            self._end = self._end_of(delta)
        return events

    def _message(self, content: list[AnswerBlock], end: MessageEnd) -> MessageObject:
        return {
            "id": self._chat.streams.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **end,
            "container": None,
            "usage": {
                **self._usage(),
                "cache_creation": None,
                "inference_geo": None,
                "server_tool_use": None,
                "service_tier": "standard",
            },
        }

    def _end_of(self, last: TextDelta) -> MessageEnd:
        if last.finish_reason is FinishReason.LENGTH:
            return {**NO_END, "stop_reason": "max_tokens"}
        if isinstance(last.stop_reason, str):
            return {**NO_END, "stop_reason": "stop_sequence", "stop_sequence": last.stop_reason}
        return {**NO_END, "stop_reason": "tool_use" if self._content.has_calls else "end_turn"}

    def _usage(self) -> MessageUsageSoFar:
        usage = self._chat.streams.usage()
        cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached_tokens,
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        }
