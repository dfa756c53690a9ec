"""Requests through a real engine, side by side, and the tokens of their events."""

import asyncio


async def collect(engine, request):
    return [event async for event in engine.submit(request)]


def run(engine, *requests):
    """Return the events of each request, or its error."""

    async def main():
        return await asyncio.gather(*(collect(engine, r) for r in requests), return_exceptions=True)

    return asyncio.run(asyncio.wait_for(main(), 60))


def tokens_of(events):
    return [token_id for event in events for token_id in event.token_ids]
