"""Token events of a request's sequences to the parts of answers, which all interfaces share.

The engine ends a sequence at a stop token or at its maximum length. Stop strings are found here, in what the client
sees, and end a sequence by an abort. The usage counts the tokens that the engine delivered, so it excludes stop tokens.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence, Set
from dataclasses import dataclass
from types import TracebackType

from service.api.answers.generation import PredictedTokens, PromptTokensDetails, Usage, UsageOfChunk
from service.api.http.call import Call
from service.api.schema.generation import GenerationRequest
from service.api.served import ServedModel
from service.engine.request import FinishReason, Request, Sampling, TokenEvent, TokenLogprobs
from service.errors import Draining, EngineError
from service.observability.clock import Clock
from service.text.detokenizer import EndCheck, StopRule, StopStrings, detokenizer_for
from service.text.formats.parts import Content, Part
from service.text.formats.reader import AnswerReader
from service.text.visible import VisibleText

type SampledToken = tuple[int, TokenLogprobs | None]  # the id, and its log-probabilities if they are requested


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The parts and tokens of one event."""

    parts: tuple[Part, ...]  # what the client sees
    token_ids: tuple[int, ...]  # whatever they are part of, without the stop token
    finish_reason: FinishReason | None = None  # STOP or LENGTH, on the last delta
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each token, if requested
    content_tokens: tuple[SampledToken, ...] = ()  # those of the content of the parts so far, if requested
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()  # on the first delta, if requested
    stop: SampledToken | None = None  # the stop token, on the last delta if one ended it
    stop_reason: int | str | None = None  # of the request's own, the stop token or string that ended it
    is_inside_call: bool = False  # whether the last delta ends within a call

    @property
    def text(self) -> str:
        """The content."""
        return "".join(part.text for part in self.parts if isinstance(part, Content))

    @property
    def sampled_ids(self) -> list[int]:
        """All tokens that were sampled, the stop token included."""
        return [*self.token_ids, *(() if self.stop is None else self.stop[:1])]

    @property
    def sampled_tokens(self) -> list[SampledToken]:
        """All tokens that were sampled with their log-probabilities, if those are requested."""
        of_stop = [] if self.stop is None or self.stop[1] is None else [self.stop]
        return [*zip(self.token_ids, self.logprobs, strict=True), *of_stop] if self.logprobs else of_stop


@dataclass(frozen=True, slots=True)
class TextRule:
    """How the tokens of a request become text."""

    stop: StopRule
    shown_ids: Set[int] = frozenset()  # special tokens that have their names as text
    reader: Callable[[], AnswerReader] | None = None  # of each text; None if all of it is content
    end_check: Callable[[], EndCheck] | None = None  # of each content; None if it may end anywhere
    scores_only: bool = False  # whether the tokens that the engine generates are dropped


class TextStream:
    """One running sequence."""

    def __init__(self, model: ServedModel, request: Request, rule: TextRule) -> None:
        self.request = request
        self._scores_only = rule.scores_only
        self.num_tokens = 0
        self.num_cached_tokens = 0  # prompt tokens found in the prefix cache
        self.num_predicted = (0, 0)  # tokens of the request's prediction that were accepted, and rejected
        self.finish_reason: FinishReason | None = None
        self._stop = rule.stop
        self._detokenizer = detokenizer_for(model.tokenizer, request.prompt_ids, rule.shown_ids)
        self._visible: VisibleText[SampledToken] | None = None  # None if all of the text is
        if rule.reader is not None or rule.stop.strings:
            self._visible = VisibleText(
                None if rule.reader is None else rule.reader(),
                StopStrings(rule.stop, None if rule.end_check is None else rule.end_check()),
                min_tokens=request.sampling.min_tokens,
            )
        self._stop_reason: int | str | None = None
        self._tokens = model.engine.submit(request)

    @property
    def clock(self) -> Clock:
        """When the sequence passed its stages, so far."""
        return self._tokens.clock

    @property
    def num_thinking_tokens(self) -> int:
        """How many of the tokens are thinking, so far."""
        return 0 if self._visible is None else self._visible.num_thinking

    @property
    def waited_for_compile_s(self) -> float:
        """How long steps of the sequence waited for an executable that a start was still compiling."""
        return self._tokens.waited_for_compile_s

    def abort(self) -> None:
        """Stop the sequence; does nothing once it has ended."""
        self._tokens.abort()

    async def deltas(self) -> AsyncIterator[TextDelta]:
        """Yield the text as it arrives; the last delta has the finish reason.

        Raises:
            Draining: the server stopped the sequence.
            EngineError: the engine failed.
        """
        async for event in self._tokens:
            yield self._delta(event)
            if self.finish_reason is not None:
                return
        raise EngineError("a sequence ended without a finish reason")

    def _delta(self, event: TokenEvent) -> TextDelta:
        parts, num_tokens = ([], 0) if self._scores_only else self._read(event)
        self.num_tokens += num_tokens
        self.num_cached_tokens += event.num_cached_tokens
        accepted, rejected = self.num_predicted
        self.num_predicted = (accepted + event.num_predicted[0], rejected + event.num_predicted[1])
        if self.finish_reason is None and event.finish_reason is FinishReason.ABORT:
            raise Draining
        logprobs = event.logprobs[:num_tokens]
        content_tokens = tuple(zip(event.token_ids[:num_tokens], logprobs, strict=True)) if logprobs else ()
        stop = None
        if self.finish_reason is None and event.finish_reason is not None:
            stop = None if self._scores_only else event.stop
            parts += self._end(FinishReason.LENGTH if self._scores_only else event.finish_reason, stop)
        if self._visible is not None:
            content_tokens = tuple(token for token in self._visible.take_tokens() if token[1] is not None)
        return TextDelta(
            tuple(parts),
            event.token_ids[:num_tokens],
            self.finish_reason,
            logprobs,
            content_tokens,
            event.prompt_logprobs,
            stop,
            self._stop_reason,
            self.finish_reason is not None and self._visible is not None and self._visible.is_inside_call,
        )

    def _read(self, event: TokenEvent) -> tuple[list[Part], int]:
        """Return an event's parts and the number of its tokens, up to the one that completes a stop string."""
        visible, num_tokens = self._visible, len(event.token_ids)
        if visible is None:
            text = self._detokenizer.push(event.token_ids)
            return [Content(text)] if text else [], num_tokens
        parts: list[Part] = []
        for index, token_id in enumerate(event.token_ids):
            logprobs = event.logprobs[index] if event.logprobs else None
            parts += visible.push(self._detokenizer.push((token_id,)), (token_id, logprobs), token_id)
            if visible.stop is not None:
                self._tokens.abort()
                self.finish_reason, self._stop_reason = FinishReason.STOP, visible.stop
                return parts, index + 1
        return parts, num_tokens

    def _end(self, reason: FinishReason, stop: SampledToken | None) -> list[Part]:
        """End the answer, and return the parts that were held back, and the stop token's text if it is kept."""
        self.finish_reason = reason
        if stop is not None and stop[0] in self._stop.token_ids:
            self._stop_reason = stop[0]
        kept = self._detokenizer.push(stop[:1]) if stop is not None and self._stop.keeps_stop else ""
        if self._visible is None:
            return [Content(kept)] if kept else []
        parts = self._visible.push(kept, stop, stop[0]) if kept and stop is not None else []
        parts += self._visible.flush() if self._visible.stop is None else []
        if self._visible.stop is not None:  # in what was held back
            self.finish_reason, self._stop_reason = FinishReason.STOP, self._visible.stop
        return parts


class TextStreams:
    """All sequences of one request, run concurrently; leaving its `with` block aborts those that have not ended.

    A choice's index is the index of its prompt times `n`, plus the number of the continuation.
    """

    def __init__(
        self,
        call: Call,
        model: ServedModel,
        answer_id: str,
        requests: Sequence[Request],
        rule: TextRule,
        *,
        per_prompt: int,
    ) -> None:
        """Submit all sequences to the engine, or none.

        Args:
            call: the HTTP request.
            model: the model that answers.
            answer_id: the id of the answer.
            requests: one for each choice, in the order of their indices.
            rule: how the tokens of each sequence become text.
            per_prompt: choices of each prompt.

        Raises:
            Overloaded, Draining, EngineStopped: the engine does not accept all of them now.
        """
        self.id = answer_id
        self.system_fingerprint = model.system_fingerprint
        self._deadline = call.deadline
        self._streams: list[TextStream] = []
        self._log_fields = call.log_fields
        self._per_prompt = per_prompt
        self._pumps: list[asyncio.Task[None]] = []
        try:
            for request in requests:
                self._streams.append(TextStream(model, request, rule))
                call.clocks.append(self._streams[-1].clock)
        except BaseException:
            self.abort()
            raise

    def __enter__(self) -> "TextStreams":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
        usage = self.usage()
        details = usage["prompt_tokens_details"]
        reasons = {str(stream.finish_reason or FinishReason.ABORT) for stream in self._streams}
        self._log_fields.update(
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            cached_tokens=details["cached_tokens"],
            finish_reason=",".join(sorted(reasons)),
            **({"image_tokens": details["image_tokens"]} if "image_tokens" in details else {}),
            **_timings([stream.clock for stream in self._streams], usage["completion_tokens"]),
        )
        if (waited_s := max((stream.waited_for_compile_s for stream in self._streams), default=0.0)) > 0:
            self._log_fields["waited_for_compile_s"] = round(waited_s, 3)

    async def deltas(self) -> AsyncIterator[tuple[int, TextDelta]]:
        """Yield the deltas of all choices as they arrive, each with its choice's index.

        The caller enforces the deadline: one timer for each request, not one for each token.

        Raises:
            Draining: the server stopped a sequence.
            EngineError: the engine failed, or one of the sequences did.
        """
        if len(self._streams) == 1:
            async for delta in self._streams[0].deltas():
                yield 0, delta
            return
        arrived: asyncio.Queue[tuple[int, TextDelta] | Exception] = asyncio.Queue()
        self._pumps = [asyncio.create_task(_pump(i, stream, arrived)) for i, stream in enumerate(self._streams)]
        num_open = len(self._streams)
        while num_open:
            arrival = await arrived.get()
            if isinstance(arrival, Exception):
                raise arrival
            num_open -= arrival[1].finish_reason is not None
            yield arrival

    async def collect(self) -> list[list[TextDelta]]:
        """Return all deltas of each choice; raises what `deltas` raises.

        Raises:
            DeadlineExceeded: the request's time is over.
        """
        collected: list[list[TextDelta]] = [[] for _ in self._streams]

        async def read() -> None:
            if len(collected) == 1:
                collected[0] += [delta async for delta in self._streams[0].deltas()]
                return
            async for index, delta in self.deltas():
                collected[index].append(delta)

        await self._deadline.within(read())
        return collected

    @property
    def sampling(self) -> Sampling:
        """The options of the first choice, defaults included."""
        return self._streams[0].request.sampling

    @property
    def num_tokens(self) -> int:
        """How many tokens all sequences have, so far."""
        return sum(stream.num_tokens for stream in self._streams)

    def prompt_ids(self, index: int) -> tuple[int, ...]:
        """Return the prompt of a choice."""
        return self._streams[index].request.prompt_ids

    def usage(self) -> Usage:
        """Return OpenAI's token counts so far: a prompt counts once, however many choices it has."""
        first_of_prompts = self._streams[:: self._per_prompt]
        prompt_tokens = sum(len(stream.request.prompt_ids) for stream in first_of_prompts)
        completion_tokens = self.num_tokens
        thinking_tokens = sum(stream.num_thinking_tokens for stream in self._streams)
        details: PromptTokensDetails = {"cached_tokens": sum(stream.num_cached_tokens for stream in first_of_prompts)}
        if image_tokens := _num_image_tokens([stream.request for stream in first_of_prompts]):
            details["image_tokens"] = image_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": details,
            "completion_tokens_details": {"reasoning_tokens": thinking_tokens, **_predicted_tokens(self._streams)},
        }

    def usage_of_chunk(self, body: GenerationRequest) -> UsageOfChunk:
        """Return the `usage` of a chunk that is not the last one: null, or the counts so far if the request asks."""
        if body.includes_usage_so_far:
            return {"usage": self.usage()}
        return {"usage": None} if body.includes_usage else {}

    def abort(self) -> None:
        """Stop all sequences that have not ended."""
        for pump in self._pumps:
            pump.cancel()
        for stream in self._streams:
            stream.abort()


def _num_image_tokens(requests: Sequence[Request]) -> int:
    return sum(placed.num_rows for request in requests for placed in request.media)


def _predicted_tokens(streams: Sequence[TextStream]) -> PredictedTokens:
    """Return how many drafted tokens of a prediction were accepted and rejected, for requests with one."""
    if not any(stream.request.prediction for stream in streams):
        return {}
    return {
        "accepted_prediction_tokens": sum(stream.num_predicted[0] for stream in streams),
        "rejected_prediction_tokens": sum(stream.num_predicted[1] for stream in streams),
    }


async def _pump(index: int, stream: TextStream, arrived: "asyncio.Queue[tuple[int, TextDelta] | Exception]") -> None:
    try:
        async for delta in stream.deltas():
            arrived.put_nowait((index, delta))
    except Exception as error:  # raised by the reader of the queue
        arrived.put_nowait(error)


def _timings(clocks: Sequence[Clock], num_tokens: int) -> dict[str, float]:
    """Return the times of a request in seconds, as far as it got.

    Args:
        clocks: one for each of its sequences, at least one.
        num_tokens: the sum over its sequences.
    """
    submitted_s = min(clock.submitted_s for clock in clocks)
    scheduled_s = [clock.scheduled_s for clock in clocks if clock.scheduled_s is not None]
    spans_s = [
        (clock.first_token_s, clock.last_token_s)
        for clock in clocks
        if clock.first_token_s is not None and clock.last_token_s is not None
    ]
    facts = {}
    if scheduled_s:
        facts["queue_s"] = max(scheduled_s) - submitted_s
    if spans_s:
        facts["time_to_first_token_s"] = min(first for first, _ in spans_s) - submitted_s
    if num_tokens > len(spans_s) > 0:
        facts["time_per_output_token_s"] = sum(last - first for first, last in spans_s) / (num_tokens - len(spans_s))
    return {name: round(value, 6) for name, value in facts.items()}
