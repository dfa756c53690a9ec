"""A stream whose reader comes late."""

import asyncio

import pytest

from service.engine.request import FinishReason, TokenEvent, TokenLogprobs, TokenStream
from service.errors import EngineError

pytestmark = pytest.mark.anyio


@pytest.fixture
def told():
    return []


@pytest.fixture
async def stream(told):
    return TokenStream(
        asyncio.get_running_loop(), abort=lambda: told.append("abort"), on_end=lambda: told.append("over")
    )


async def test_all_that_has_arrived_is_one_event(stream, told):
    entries = [TokenLogprobs(-float(i), 1) for i in range(4)]
    stream.put(TokenEvent((1,), None, 16, (entries[0],), (None, entries[3])))
    stream.put(TokenEvent((2,), None, logprobs=(entries[1],)))
    assert await anext(stream) == TokenEvent((1, 2), None, 16, (entries[0], entries[1]), (None, entries[3]))
    stream.put(TokenEvent((3,), None, logprobs=(entries[2],)))
    stream.put(TokenEvent((), FinishReason.STOP, stop=(9, entries[3])))
    assert await anext(stream) == TokenEvent((3,), FinishReason.STOP, logprobs=(entries[2],), stop=(9, entries[3]))
    assert [event async for event in stream] == []
    stream.abort()
    assert told == ["over"]


async def test_an_error_comes_after_what_arrived_before_it(stream):
    stream.put(TokenEvent((1,)))
    stream.put(TokenEvent((2,)))
    stream.put(EngineError("boom"))
    assert (await anext(stream)).token_ids == (1, 2)
    with pytest.raises(EngineError, match="boom"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_reader_that_came_first_waits(stream):
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not reading.done()
    stream.put(TokenEvent((7,), FinishReason.LENGTH))
    assert (await reading).token_ids == (7,)
