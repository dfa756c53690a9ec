"""The end after SIGTERM or SIGINT: new requests are refused, and those under way have DRAIN_SECONDS until they end."""

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from uvicorn.server import ServerState

from service.errors import Draining
from service.server.service import Service

logger = logging.getLogger(__name__)

LAST_WORDS_S = 0.4  # for the responses that were cut off


async def drain(state: ServerState, service: Service, seconds: float) -> None:
    """Wait up to `seconds` for the responses under way, then end them with an error and their connections.

    Args:
        state: the server's connections, and its tasks, one for each response.
        service: what answers.
        seconds: DRAIN_SECONDS.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    service.begin_drain()
    responses = set(state.tasks)  # those that come now are refused
    batches = loop.create_task(service.stop_batches())
    await _wait({*responses, batches}, end_s)
    cut = [task for task in responses if not task.done()]
    if cut:
        service.cut(Draining)
        await _wait(cut, loop.time() + LAST_WORDS_S)
        for task in cut:  # which works on no sequence: it reads a body, or its prompt
            task.cancel()
        await _wait(cut, loop.time() + LAST_WORDS_S / 4)
    connections = list(state.connections)
    for connection in connections:
        connection.shutdown()
    while state.connections.intersection(connections) and loop.time() < end_s:
        await asyncio.sleep(0.02)
    for connection in state.connections.intersection(connections):
        connection.transport.abort()
    logger.info("drained", extra={"responses": len(responses), "cut_off": len(cut)})


async def _wait(tasks: Collection["asyncio.Task[Any]"], end_s: float) -> None:
    """Wait until all tasks are done, or until a time of the event loop's clock."""
    left_s = end_s - asyncio.get_running_loop().time()
    if tasks and left_s > 0:
        await asyncio.wait(tasks, timeout=left_s)
