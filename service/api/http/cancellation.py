"""Stops the work for a client that has gone away."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from service.errors import ClientGone


async def unless_disconnected[T](receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, whose request was read to its end, and return its result; cancel it if the client goes first.

    Raises:
        ClientGone: the client went first.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
