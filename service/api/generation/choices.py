"""The sequences of one request: each prompt has as many continuations as were asked for.

index of a choice = number of its prompt * n + number of the continuation
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any

from service.api.dependencies import Exchange
from service.api.generation.generation import Generation, Piece
from service.engine.request import FinishReason, Request


class Choices:
    """Runs the sequences side by side; leaving its `with` block stops them all, however far they are."""

    def __init__(
        self, exchange: Exchange, answer_id: str, requests: Sequence[Request], stop: Sequence[str], *, per_prompt: int
    ) -> None:
        """Submit all requests to the engine, or none.

        Args:
            exchange: whom to answer.
            answer_id: of the answer as a whole.
            requests: one a choice, in the order of their indices.
            stop: strings that end a text.
            per_prompt: how many choices each prompt has.

        Raises:
            Overloaded, Draining, EngineStopped: the engine does not take all of them now.
        """
        self.id = answer_id
        self.deadline = exchange.deadline
        self.generations: list[Generation] = []
        self._facts = exchange.facts
        self._per_prompt = per_prompt
        self._pumps: list[asyncio.Task[None]] = []
        try:
            for request in requests:
                self.generations.append(Generation(exchange, request, stop))
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> "Choices":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        usage = self.usage()
        reasons = {str(generation.finish_reason or FinishReason.ABORT) for generation in self.generations}
        self._facts.update(
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            finish_reason=",".join(sorted(reasons)),
        )

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Yield the text of all choices as it comes, each piece with its choice's index.

        Who reads them ends this at the deadline: one timer a request and not one a token.

        Raises:
            Draining: the server stopped a sequence.
            EngineError: the engine failed, or one of the sequences did.
        """
        if len(self.generations) == 1:
            async for piece in self.generations[0].pieces():
                yield 0, piece
            return
        arrived: asyncio.Queue[tuple[int, Piece] | Exception] = asyncio.Queue()
        self._pumps = [asyncio.create_task(_pump(i, g, arrived)) for i, g in enumerate(self.generations)]
        num_open = len(self.generations)
        while num_open:
            arrival = await arrived.get()
            if isinstance(arrival, Exception):
                raise arrival
            num_open -= arrival[1].finish_reason is not None
            yield arrival

    async def collect(self) -> list[list[Piece]]:
        """Return all pieces of each choice; raises what `pieces` raises.

        Raises:
            DeadlineExceeded: the request's time is over.
        """
        collected: list[list[Piece]] = [[] for _ in self.generations]

        async def read() -> None:
            async for index, piece in self.pieces():
                collected[index].append(piece)

        await self.deadline.within(read())
        return collected

    def prompt_ids(self, index: int) -> tuple[int, ...]:
        """Return the prompt of a choice."""
        return self.generations[index].request.prompt_ids

    def usage(self) -> dict[str, Any]:
        """Return OpenAI's token counts, as of now: a prompt counts once, however many choices it has."""
        prompt_tokens = sum(len(g.request.prompt_ids) for g in self.generations[:: self._per_prompt])
        completion_tokens = sum(g.num_tokens for g in self.generations)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(g.num_found for g in self.generations[:: self._per_prompt])},
        }

    def _stop(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        for generation in self.generations:
            generation.stop()


async def _pump(index: int, generation: Generation, arrived: "asyncio.Queue[tuple[int, Piece] | Exception]") -> None:
    try:
        async for piece in generation.pieces():
            arrived.put_nowait((index, piece))
    except Exception as error:  # the one who reads the queue raises it
        arrived.put_nowait(error)
