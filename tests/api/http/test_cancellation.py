import asyncio

import pytest

from service.api.http.call import Deadline, cancel_on_disconnect
from service.errors import ClientDisconnected, DeadlineExceeded
from tests.api.http.advance import advance

pytestmark = pytest.mark.anyio


async def stays():
    await asyncio.Event().wait()


async def endless(ended):
    """Work until it is cancelled, and note that it has ended."""
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(True)


async def leaves():
    return {"type": "http.disconnect"}


async def test_the_result_passes_when_the_client_stays():
    assert await cancel_on_disconnect(stays, asyncio.sleep(0, "done")) == "done"


async def test_an_error_of_the_work_passes_on():
    async def fails():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await cancel_on_disconnect(stays, fails())


async def test_the_work_is_cancelled_and_over_when_the_client_leaves():
    ended = []
    with pytest.raises(ClientDisconnected):
        await cancel_on_disconnect(leaves, endless(ended))
    assert ended
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)  # the task goes on


async def test_a_broken_connection_is_one_that_the_client_has_left():
    async def broken():
        raise ConnectionResetError

    with pytest.raises(ClientDisconnected):
        await cancel_on_disconnect(broken, endless([]))


async def test_work_that_ends_by_an_error_of_its_own_raises_that_though_the_client_has_left():
    async def fails():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("mine") from None

    with pytest.raises(ValueError, match="mine"):
        await cancel_on_disconnect(leaves, fails())
    assert asyncio.current_task().cancelling() == 0


async def test_another_cancellation_stays_one_though_the_client_leaves_too():
    has_left = asyncio.Event()

    async def leaves_later():
        await has_left.wait()
        return {"type": "http.disconnect"}

    handler = asyncio.create_task(cancel_on_disconnect(leaves_later, endless([])))
    for _ in range(10):
        await asyncio.sleep(0)
    has_left.set()
    handler.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handler


async def test_a_server_that_stops_the_handler_stops_the_work():
    ended = []
    handler = asyncio.ensure_future(cancel_on_disconnect(stays, endless(ended)))
    for _ in range(10):  # the work has begun
        await asyncio.sleep(0)
    handler.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handler
    assert ended


async def test_a_deadline_counts_from_its_making_and_passes_results_on():
    deadline = Deadline(60)
    assert await deadline.within(asyncio.sleep(0, "done")) == "done"
    advance(60)
    with pytest.raises(DeadlineExceeded, match="60 s"):
        await deadline.within(asyncio.sleep(10))
    with pytest.raises(DeadlineExceeded):
        await deadline.within(asyncio.sleep(10))


async def test_a_timeout_of_somebody_else_is_not_the_deadlines():
    async def fails():
        raise TimeoutError("other")

    with pytest.raises(TimeoutError, match="other"):
        await Deadline(5.0).within(fails())
