import asyncio

import pytest

from service.api.http.cancellation import unless_disconnected
from service.errors import ClientGone

pytestmark = pytest.mark.anyio


async def stays():
    await asyncio.Event().wait()


async def leaves():
    return {"type": "http.disconnect"}


async def test_the_result_passes_when_the_client_stays():
    assert await unless_disconnected(stays, asyncio.sleep(0, "done")) == "done"


async def test_an_error_of_the_work_passes_on():
    async def fails():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await unless_disconnected(stays, fails())


async def test_the_work_is_cancelled_and_over_when_the_client_leaves():
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(ClientGone):
        await unless_disconnected(leaves, work())
    assert ended


async def test_a_server_that_stops_the_handler_stops_the_work():
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    handler = asyncio.ensure_future(unless_disconnected(stays, work()))
    await asyncio.sleep(0.01)
    handler.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handler
    assert ended
