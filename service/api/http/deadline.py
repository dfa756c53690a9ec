"""REQUEST_TIMEOUT: one moment for a whole request, whatever it waits for."""

import asyncio
from collections.abc import Awaitable

from service.errors import DeadlineExceeded


class Deadline:
    """The moment at which a request's time is over."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._end_s = asyncio.get_running_loop().time() + limit_s

    async def within[T](self, awaited: Awaitable[T]) -> T:
        """Wait for something until then.

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
