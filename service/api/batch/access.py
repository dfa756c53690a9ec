"""Shared by the routes of files and batches: the batches of the app, the owner of a request, work in threads."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Depends, Request

from service.api.batch.batches import Batches
from service.api.http.call import call_of
from service.api.http.keys import owner_of
from service.errors import CheckpointError, FilesUnavailable

logger = logging.getLogger(__name__)


async def batches_of(request: Request) -> Batches:
    """Return the batches of the app."""
    return request.app.state.batches


async def owner(request: Request) -> str:
    """Return the owner of what a request may see."""
    return owner_of(call_of(request.scope).cache_salt)


AppBatches = Annotated[Batches, Depends(batches_of)]
Owner = Annotated[str, Depends(owner)]


async def in_store[T](work: Callable[[], T]) -> T:
    """Do blocking work with the store in a thread.

    Raises:
        FilesUnavailable: the store failed, which is logged.
    """
    with failures_of_disks():
        return await asyncio.to_thread(work)


@contextmanager
def failures_of_disks() -> Iterator[None]:
    """Log what the store or a temporary file raises, and raise FilesUnavailable in its place."""
    try:
        yield
    except (OSError, CheckpointError) as error:
        logger.error("files cannot be read or written", exc_info=error)
        raise FilesUnavailable from error
