"""Token events to text: what chats and completions share between the engine and their own framing.

The engine ends a sequence at a stop token or at its length; a stop string is found here, and ends it by an abort. The
usage counts the tokens that the engine delivered, so neither the prompt again nor the stop token.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from service.api.dependencies import Exchange
from service.engine.request import FinishReason, Request, TokenEvent
from service.errors import ContextLengthExceeded, Draining, EngineError
from service.text.detokenizer import detokenizer_for
from service.text.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event brought."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None  # STOP or LENGTH, on the last piece


class Generation:
    """One running request; leaving its `with` block stops it, however far it is."""

    def __init__(self, exchange: Exchange, request: Request, stop: Sequence[str]) -> None:
        self.request = request
        self.deadline = exchange.deadline
        self.num_tokens = 0
        self._facts = exchange.facts
        self._detokenizer = detokenizer_for(exchange.model.tokenizer, request.prompt_ids)
        self._stop_strings = StopStrings(stop)
        self._finish_reason: FinishReason | None = None
        self._stream = exchange.model.engine.submit(request)

    def __enter__(self) -> "Generation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.abort()
        self._facts.update(
            prompt_tokens=len(self.request.prompt_ids),
            completion_tokens=self.num_tokens,
            finish_reason=str(self._finish_reason or FinishReason.ABORT),
        )

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the text as it comes; the last piece says why it ended.

        Raises:
            DeadlineExceeded: the request's time is over.
            Draining: the server stopped the sequence.
            EngineError: the engine failed.
        """
        events = aiter(self._stream)
        while self._finish_reason is None:
            try:
                event = await self.deadline.within(anext(events))
            except StopAsyncIteration:
                raise EngineError("a sequence ended without a reason") from None
            yield self._piece(event)

    def usage(self) -> dict[str, int]:
        """Return OpenAI's token counts, as of now."""
        prompt_tokens = len(self.request.prompt_ids)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.num_tokens,
            "total_tokens": prompt_tokens + self.num_tokens,
        }

    def _piece(self, event: TokenEvent) -> Piece:
        self.num_tokens += len(event.token_ids)
        text, is_stopped = self._stop_strings.push(self._detokenizer.push(event.token_ids))
        if is_stopped:
            self._stream.abort()
            self._finish_reason = FinishReason.STOP
        elif event.finish_reason is FinishReason.ABORT:
            raise Draining
        elif event.finish_reason is not None:
            text += self._stop_strings.flush()
            self._finish_reason = event.finish_reason
        return Piece(text, event.token_ids, self._finish_reason)


async def collect(generation: Generation) -> tuple[str, list[int], str]:
    """Return the whole text, its token ids and the finish reason; raises what `pieces` raises."""
    pieces = [piece async for piece in generation.pieces()]
    token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
    return "".join(piece.text for piece in pieces), token_ids, str(pieces[-1].finish_reason)


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
