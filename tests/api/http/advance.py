"""A clock that a test moves, so that a deadline passes after what must come first, on a machine of any speed."""

import asyncio


def advance(seconds):
    """Move the running event loop's clock forward; what was due meanwhile happens next."""
    loop = asyncio.get_running_loop()
    earlier = loop.time
    loop.time = lambda: earlier() + seconds


async def until(is_so):
    """Let the event loop go on until something is so."""
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.001)
