"""Ends the work for a request: at its deadline, or when the client disconnects."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

from starlette.types import Receive

from service.errors import ClientDisconnected, DeadlineExceeded


class Deadline:
    """REQUEST_TIMEOUT: one moment for a whole request, on the event loop's clock."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._end_s = asyncio.get_running_loop().time() + limit_s

    async def within[T](self, awaited: Awaitable[T]) -> T:
        """Return the result of an awaitable, cancelled at the deadline.

        Raises:
            DeadlineExceeded: the time was over first.
        """
        scope = asyncio.timeout_at(self._end_s)
        try:
            async with scope:
                return await awaited
        except TimeoutError:
            if scope.expired():
                raise DeadlineExceeded(self._limit_s) from None
            raise


async def cancel_on_disconnect[T](receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, cancelled if the client disconnects first; the request's body must have been read.

    Raises:
        ClientDisconnected: the client disconnected first.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
