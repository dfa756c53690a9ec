"""POST /v1/completions."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from service.api.answers.generation import Completion, CompletionChoice, CompletionHead, CompletionLogprobs
from service.api.dependencies import OpenCall
from service.api.generation.answer import answer
from service.api.generation.logprobs import CompletionLogprobsParts, prompt_logprobs
from service.api.generation.started import start_completion
from service.api.generation.streams import TextDelta, TextStreams
from service.api.http.receive import json_body
from service.api.openapi.responses import GENERATION_ERRORS, answers
from service.api.schema.completions import CompletionRequest
from service.api.schema.token_ids import TokenIds
from service.engine.request import FinishReason
from service.text.tokenizer import Tokenizer

router = APIRouter(tags=["generation"])

DEFAULT_MAX_TOKENS = 16  # OpenAI's


@router.post("/v1/completions", responses=answers(Completion, *GENERATION_ERRORS, events=Completion))
async def create_completion(
    call: OpenCall,
    body: Annotated[CompletionRequest, Depends(json_body(CompletionRequest))],
) -> Response:
    """Continue a text.

    Deviations: `prompt` is required; `n` times the number of prompts is 64 at most; `best_of` must equal `n`;
    `logprobs` may be 20, and are the model's own, before temperature, bias and penalties; they include the stop token,
    which `completion_tokens` excludes; a stream begins with the first token. `schema.completions` lists the refused
    fields.

    Source: https://platform.openai.com/docs/api-reference/completions/create
    """
    model = await call.generating(body.model)
    begun = await start_completion(call, model, body, prefix="cmpl-", default_max_tokens=DEFAULT_MAX_TOKENS)
    writer = _CompletionAnswer(body, begun.streams, begun.prompts, model.tokenizer)
    return await answer(call, begun.streams, begun.options, writer)


class _CompletionAnswer:
    """The choices of a completion as they come to be."""

    def __init__(
        self, body: CompletionRequest, streams: TextStreams, prompts: Sequence[TokenIds], tokenizer: Tokenizer
    ) -> None:
        self._body, self._streams = body, streams
        self._head: CompletionHead = {
            "id": streams.id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": streams.system_fingerprint,
        }
        all_ids = (ids for ids in prompts for _ in range(body.n))
        self._writers = [_ChoiceWriter(index, body, ids, tokenizer) for index, ids in enumerate(all_ids)]

    def whole(self, collected: Sequence[Sequence[TextDelta]]) -> Completion:
        """Return the complete answer."""
        choices = [writer.write(deltas) for writer, deltas in zip(self._writers, collected, strict=True)]
        return {**self._head, "choices": choices, "usage": self._streams.usage()}

    async def events(self) -> AsyncIterator[list[Completion]]:
        """Yield the text as it arrives, the finish reason of each choice, and the usage if requested."""
        body, head = self._body, self._head
        sends_tokens = body.return_token_ids or body.logprobs is not None
        async for index, delta in self._streams.deltas():
            parts = [delta]
            if delta.finish_reason is not None:
                end = replace(delta, parts=(), token_ids=(), logprobs=())
                parts = [replace(delta, finish_reason=None, stop=None, stop_reason=None), end]
            # A token that does not complete a character yet is sent only if tokens were requested.
            sent = [part for part in parts if part.text or part.finish_reason or (sends_tokens and part.token_ids)]
            if sent:
                usage, write = self._streams.usage_of_chunk(body), self._writers[index].write
                yield [{**head, "choices": [write([part])], **usage} for part in sent]
        if body.includes_usage:
            yield [{**head, "choices": [], "usage": self._streams.usage()}]


class _ChoiceWriter:
    """Writes one choice, whole or in parts; with `echo`, its first part begins with the prompt."""

    def __init__(self, index: int, body: CompletionRequest, prompt_ids: Sequence[int], tokenizer: Tokenizer) -> None:
        self._index = index
        self._body = body
        self._prompt_ids = list(prompt_ids)
        self._tokenizer = tokenizer
        self._logprobs = CompletionLogprobsParts(
            tokenizer,
            body.logprobs or 0,
            context_ids=() if body.echo else self._prompt_ids,
            as_ids=body.return_tokens_as_token_ids,
            keeps_special=not body.skip_special_tokens,
        )
        self._has_begun = False

    def write(self, deltas: Sequence[TextDelta]) -> CompletionChoice:
        """Return the choice, or the next part of it, that consists of these deltas."""
        is_first, self._has_begun = not self._has_begun, True
        echoes = is_first and self._body.echo
        token_ids = [token_id for delta in deltas for token_id in delta.sampled_ids]
        choice: CompletionChoice = {
            "index": self._index,
            "text": (self._prompt_text() if echoes else "") + "".join(delta.text for delta in deltas),
            "logprobs": self._write_logprobs(deltas, echoes=echoes),
            "finish_reason": _reason(deltas[-1].finish_reason),
            "stop_reason": deltas[-1].stop_reason,
        }
        if not self._body.stream:
            choice["prompt_token_ids"] = choice["token_ids"] = choice["prompt_logprobs"] = None
        if self._body.return_token_ids:
            if is_first:
                choice["prompt_token_ids"] = self._prompt_ids
            choice["token_ids"] = token_ids
        if is_first and self._body.prompt_logprobs is not None:
            computed = deltas[0].prompt_logprobs
            num_top = self._body.prompt_logprobs
            choice["prompt_logprobs"] = prompt_logprobs(self._tokenizer, self._prompt_ids, computed, num_top)
        return choice

    def _write_logprobs(self, deltas: Sequence[TextDelta], *, echoes: bool) -> CompletionLogprobs | None:
        # Clients that score a prompt with `echo` and one token expect that token whatever it is.
        sampled = [token for delta in deltas for token in delta.sampled_tokens]
        if self._body.logprobs is None or not (sampled or echoes):
            return None
        token_ids, logprobs = [token_id for token_id, _ in sampled], [entry for _, entry in sampled]
        if not echoes:
            return self._logprobs.part(token_ids, logprobs)
        # A prompt of one token has none, since its first token has no context.
        of_prompt = deltas[0].prompt_logprobs or (None,) * len(self._prompt_ids)
        echoed = self._logprobs.part(self._prompt_ids, of_prompt)
        self._logprobs.begin_behind(self._prompt_text())
        sampled_part = self._logprobs.part(token_ids, logprobs)
        return {
            "text_offset": echoed["text_offset"] + sampled_part["text_offset"],
            "tokens": echoed["tokens"] + sampled_part["tokens"],
            "token_logprobs": echoed["token_logprobs"] + sampled_part["token_logprobs"],
            "top_logprobs": echoed["top_logprobs"] + sampled_part["top_logprobs"],
        }

    def _prompt_text(self) -> str:
        prompt = self._body.prompt[self._index // self._body.n]
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)


def _reason(reason: FinishReason | None) -> Literal["stop", "length"] | None:
    if reason is None:
        return None
    return "length" if reason is FinishReason.LENGTH else "stop"
