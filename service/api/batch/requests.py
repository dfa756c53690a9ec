"""Answers to the requests of a batch, from the API of this process, without a port."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.batch.lines import BadLine, BatchLine
from service.api.batch.recordings import AUDIO_URLS, form_fields, read_recording
from service.api.http.call import CALL, Call
from service.errors import EngineStopped

TOO_MANY, UNAVAILABLE = 429, 503
JSON = "application/json"


def client_of(api: ASGIApp) -> httpx.AsyncClient:
    """Return a client of an app in this process."""
    # The base URL is a formality; the transport calls the app.
    return httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://levserve")


def as_background(api: ASGIApp, owner: str, timeout_s: Callable[[], float]) -> ASGIApp:
    """Return an app that answers requests for a batch: behind all others, and without asking for a key.

    Args:
        api: the app.
        owner: the owner of the batch; only requests of the same owner share cached prefixes.
        timeout_s: returns how long a request may take that begins now.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request_id, cache_salt = f"req_{uuid.uuid4().hex}", owner.encode()
        scope[CALL] = Call(id=request_id, cache_salt=cache_salt, batch_timeout_s=timeout_s())
        await api(scope, receive, send)

    return answer


async def answers(
    client: httpx.AsyncClient,
    lines: Iterator[BatchLine],
    slots: asyncio.Semaphore,
    read_file: Callable[[str], bytes] | None = None,
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the answers in the order in which they complete, as lines of an output file.

    Closing the iterator ends the requests in flight.

    Args:
        client: a client of the app that answers.
        lines: the requests.
        slots: one is held by each request in flight.
        read_file: reads the recordings that lines name, as `read_recording` does; None for lines without any.

    Raises:
        EngineStopped: the engine failed.
    """
    in_flight: set[asyncio.Task[dict[str, Any]]] = set()
    next_line = next(lines, None)
    try:
        while next_line is not None or in_flight:
            while next_line is not None and not (slots.locked() and in_flight):
                await slots.acquire()
                task = asyncio.create_task(_answer(client, next_line, read_file))
                task.add_done_callback(lambda _: slots.release())
                in_flight.add(task)
                next_line = next(lines, None)
            done, in_flight = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in in_flight:
            task.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)


async def _answer(
    client: httpx.AsyncClient, line: BatchLine, read_file: Callable[[str], bytes] | None
) -> dict[str, Any]:
    try:
        send = await _sender(client, line, read_file)
    except BadLine as error:
        document = {"message": error.message, "type": "invalid_request_error", "param": error.param, "code": error.code}
        return _answered(line, 400, None, {"error": document})
    # An encoder counts the requests of batches among those that it holds at once.
    while (reply := await send()).status_code == TOO_MANY:
        await asyncio.sleep(float(reply.headers["retry-after"]))
    is_text = reply.headers.get("content-type", JSON).partition(";")[0] != JSON
    body: Any = {"text": reply.text} if is_text else reply.json()
    if reply.status_code == UNAVAILABLE:  # of the whole service, not of this request
        raise EngineStopped(f"the engine failed at {line.custom_id!r}: {body['error']['message']}")
    return _answered(line, reply.status_code, reply.headers.get("x-request-id"), body)


async def _sender(
    client: httpx.AsyncClient, line: BatchLine, read_file: Callable[[str], bytes] | None
) -> Callable[[], Awaitable[httpx.Response]]:
    """Return what sends the request of a line."""
    if line.url not in AUDIO_URLS or read_file is None:
        return partial(client.post, line.url, json=line.body)
    content = await asyncio.to_thread(read_recording, line.body, read_file)
    return partial(client.post, line.url, data=form_fields(line.body), files={"file": ("recording", content)})


def _answered(line: BatchLine, status: int, request_id: str | None, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": request_id or f"req_{uuid.uuid4().hex}", "body": body}
    return {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": line.custom_id, "response": response, "error": None}
