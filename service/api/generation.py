"""Token events to text: what chats and completions share between the engine and their own framing.

The engine ends a sequence at a stop token or at its length; a stop string is found here, and ends it by an abort. The
usage counts the tokens that the engine delivered, so neither the prompt again nor the stop token.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from service.api.dependencies import Exchange
from service.engine.request import FinishReason, Request, TokenEvent, TokenLogprobs
from service.errors import ContextLengthExceeded, Draining, EngineError
from service.text.detokenizer import detokenizer_for
from service.text.stop_strings import StopStrings


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
        self._deadline = exchange.deadline
        self._detokenizer = detokenizer_for(exchange.model.tokenizer, request.prompt_ids)
        self._stop_strings = StopStrings(stop)
        self._stream = exchange.model.engine.submit(request)

    def stop(self) -> None:
        """Stop the sequence, however far it is."""
        self._stream.abort()

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the text as it comes; the last piece says why it ended.

        Raises:
            DeadlineExceeded: the request's time is over.
            Draining: the server stopped the sequence.
            EngineError: the engine failed.
        """
        events = aiter(self._stream)
        while self.finish_reason is None:
            try:
                event = await self._deadline.within(anext(events))
            except StopAsyncIteration:
                raise EngineError("a sequence ended without a reason") from None
            yield self._piece(event)

    def _piece(self, event: TokenEvent) -> Piece:
        self.num_tokens += len(event.token_ids)
        self.num_found += event.num_found
        text, is_stopped = self._stop_strings.push(self._detokenizer.push(event.token_ids))
        if is_stopped:
            self._stream.abort()
            self.finish_reason = FinishReason.STOP
        elif event.finish_reason is FinishReason.ABORT:
            raise Draining
        elif event.finish_reason is not None:
            text += self._stop_strings.flush()
            self.finish_reason = event.finish_reason
        return Piece(text, event.token_ids, self.finish_reason, event.logprobs, event.prompt_logprobs)


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
