"""From running sequences to the answer of a request: streamed as they go on, or collected and written at their end."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response

from service.api.conversation import Options
from service.api.generation.logprobs import is_long_to_write
from service.api.generation.streams import TextDelta, TextStreams
from service.api.http.call import Call
from service.api.http.sse import EventStream

type Events = AsyncIterator[Sequence[Mapping[str, Any]]]


class Writer[D: Mapping[str, Any]](Protocol):
    """Writes the answers to one request as their interface has them."""

    def events(self) -> Events:
        """Yield the events of a stream; those of one item are sent together."""
        ...

    def whole(self, collected: Sequence[Sequence[TextDelta]]) -> D:
        """Return the complete answer, from all that each choice consists of."""
        ...


async def answer[D: Mapping[str, Any]](
    call: Call,
    streams: TextStreams,
    options: Options,
    writer: Writer[D],
    respond: Callable[..., Response] = EventStream,
    *,
    keep: Callable[[D], Awaitable[None]] | None = None,
) -> Response:
    """Return the response to a request.

    Args:
        call: the HTTP request.
        streams: its running sequences, which end with the response.
        options: the request's.
        writer: writes the answer.
        respond: makes a response of events, as `EventStream` does.
        keep: is given a complete answer before it is sent.

    Raises:
        ClientDisconnected, DeadlineExceeded: the client or the time was gone first.
        Draining, EngineError: as `TextStreams.collect`.
    """
    if options.stream:
        return respond(writer.events(), sequences=streams, deadline=call.deadline)
    with streams:
        collected = await call.unless_disconnected(streams.collect())

    async def made[T](make: Callable[[], T]) -> T:
        return await call.run_in_thread(make) if is_long_to_write(streams, options) else make()

    document = await made(lambda: writer.whole(collected))
    if keep is not None:
        await keep(document)
    return await made(lambda: JSONResponse(document))
