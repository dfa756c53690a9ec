"""Token events to text: what chats and completions share between the engine and their own framing.

The engine ends a sequence at a stop token or at its length; a stop string is found here, and ends it by an abort. The
usage counts the tokens that the engine delivered, so neither the prompt again nor the stop token.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from service.api.dependencies import Exchange
from service.engine.request import FinishReason, Request, TokenEvent, TokenLogprobs
from service.errors import ContextLengthExceeded, Draining, EngineError
from service.text.detokenizer import StopStrings, detokenizer_for


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event brought."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None  # STOP or LENGTH, on the last piece
    logprobs: tuple[TokenLogprobs, ...] = ()  # one a token, if the request asked
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()  # on the first piece, if the request asked


class Generation:
    """One running sequence."""

    def __init__(self, exchange: Exchange, request: Request, stop: Sequence[str]) -> None:
        self.request = request
        self.num_tokens = 0
        self.num_found = 0  # prompt tokens that were found in the prefix cache
        self.finish_reason: FinishReason | None = None
        self._detokenizer = detokenizer_for(exchange.model.tokenizer, request.prompt_ids)
        self._may_be_cut = bool(stop)
        self._stop_strings = StopStrings(stop)
        self._stream = exchange.model.engine.submit(request)

    def stop(self) -> None:
        """Stop the sequence, however far it is."""
        self._stream.abort()

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the text as it comes; the last piece says why it ended.

        Raises:
            Draining: the server stopped the sequence.
            EngineError: the engine failed.
        """
        async for event in self._stream:
            yield self._piece(event)
            if self.finish_reason is not None:
                return
        raise EngineError("a sequence ended without a reason")

    def _piece(self, event: TokenEvent) -> Piece:
        text, num_tokens = self._read(event)
        self.num_tokens += num_tokens
        self.num_found += event.num_found
        if self.finish_reason is None and event.finish_reason is FinishReason.ABORT:
            raise Draining
        if self.finish_reason is None and event.finish_reason is not None:
            self.finish_reason = event.finish_reason
            text += self._stop_strings.flush()
        token_ids, logprobs = event.token_ids[:num_tokens], event.logprobs[:num_tokens]
        return Piece(text, token_ids, self.finish_reason, logprobs, event.prompt_logprobs)

    def _read(self, event: TokenEvent) -> tuple[str, int]:
        """Return an event's text and of how many tokens it is: those after a stop string do not count."""
        if not self._may_be_cut:
            return self._detokenizer.push(event.token_ids), len(event.token_ids)
        text = ""
        for index, token_id in enumerate(event.token_ids):
            more, is_stopped = self._stop_strings.push(self._detokenizer.push((token_id,)))
            text += more
            if is_stopped:
                self._stream.abort()
                self.finish_reason = FinishReason.STOP
                return text, index + 1
        return text, len(event.token_ids)


def token_budget(
    *, prompt_tokens: int, asked: tuple[int | None, str], default: int | None, limit_tokens: int, param: str
) -> int:
    """Return how many tokens a completion may have.

    Args:
        prompt_tokens: length of the prompt.
        asked: the request's own limit and the field that it stands in.
        default: the limit when the request has none, cut to what is left of the context; None for all that is left.
        limit_tokens: length of the context.
        param: the field that the prompt stands in.

    Raises:
        ContextLengthExceeded: the context has no room for what was asked.
    """
    room = limit_tokens - prompt_tokens
    max_tokens, max_tokens_param = asked
    if room < 1 or (max_tokens is not None and max_tokens > room):
        raise ContextLengthExceeded(
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens or 1,
            limit_tokens=limit_tokens,
            param=param if room < 1 else max_tokens_param,
        )
    return max_tokens or min(default or room, room)
