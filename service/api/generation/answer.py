"""From running sequences to the answer of a request: streamed as they go on, or collected and written at their end."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response

from service.api.conversation import Options
from service.api.generation.logprobs import is_long_to_write
from service.api.generation.streams import TextDelta, TextStreams
from service.api.http.call import Call
from service.api.http.sse import EventStream

type Events = AsyncIterator[Sequence[Mapping[str, Any]]]


class Writer(Protocol):
    """Writes the answers to one request as their interface has them."""

    def events(self) -> Events:
        """Yield the events of a stream; those of one item are sent together."""
        ...

    def whole(self, collected: Sequence[Sequence[TextDelta]]) -> Mapping[str, Any]:
        """Return the complete answer, from all that each choice consists of."""
        ...


async def answer(
    call: Call,
    streams: TextStreams,
    options: Options,
    writer: Writer,
    respond: Callable[..., Response] = EventStream,
) -> Response:
    """Return the response to a request.

    Args:
        call: the HTTP request.
        streams: its running sequences, which end with the response.
        options: the request's.
        writer: writes the answer.
        respond: makes a response of events, as `EventStream` does.

    Raises:
        ClientDisconnected, DeadlineExceeded: the client or the time was gone first.
        Draining, EngineError: as `TextStreams.collect`.
    """
    if options.stream:
        return respond(writer.events(), sequences=streams, deadline=call.deadline)
    with streams:
        collected = await call.unless_disconnected(streams.collect())

    def write() -> JSONResponse:
        return JSONResponse(writer.whole(collected))

    return await call.run_in_thread(write) if is_long_to_write(streams, options) else write()
