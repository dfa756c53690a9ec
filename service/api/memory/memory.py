"""The stored responses of one API key: read, continued, deleted, cancelled, and written as they are made."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.types import Message

from service.api.answers.responses import ResponseObject, ResponseStatus
from service.api.http.call import Call, call_of, cancel_on_disconnect
from service.api.http.keys import owner_of
from service.api.http.receive import parsed_body
from service.api.memory.continued import ContinuedRequest, joined, packed_items
from service.api.memory.store import UNFINISHED, Kept, LiveResponse, ResponseStore
from service.api.schema.responses import ResponsesRequest
from service.api.work.long_body import LongBody
from service.errors import (
    ClientDisconnected,
    InvalidParameter,
    PreviousResponseNotFound,
    RequestError,
    ResponsesUnavailable,
    UnknownObject,
    UnsupportedParameter,
)
from service.storage.store import Claim

logger = logging.getLogger(__name__)

# Between two looks whether another process has cancelled or deleted a response in the background.
LOOK_INTERVAL_S = 5.0
# Between two renewals of a claim, which outlives several that fail.
RENEW_INTERVAL_S = 30.0
# How long the end of a response in the background is written again where the store fails, and how often.
LAST_WRITE_S, RETRY_INTERVAL_S = 600.0, 2.0


class ResponseMemory:
    """The responses of the API key of a request."""

    def __init__(self, request: Request, store: ResponseStore | None) -> None:
        """Belong to a request; `store` is None where nothing is kept."""
        self._request = request
        self._store = store
        self._owner = owner_of(call_of(request.scope).cache_salt)

    async def continued(self, call: Call, body: ResponsesRequest) -> ResponsesRequest:
        """Return a request with the items of the response that it continues; a long one without its bulk.

        Raises:
            UnsupportedParameter: it needs a store, and nothing is kept here.
            PreviousResponseNotFound: this key has no such response.
            ResponsesUnavailable: the store failed.
            InvalidParameter: it has not ended yet, or has become too long, or a result has no call.
        """
        previous_id = body.previous_response_id
        if self._store is None:
            if previous_id is not None:
                message = "this server keeps no responses. Send the earlier items as 'input'."
                raise UnsupportedParameter("previous_response_id", message)
            if body.background:
                raise UnsupportedParameter("background", "this server keeps no responses. Leave it out.")
            if body.store:
                call.ignore(["store"])
        self._body = LongBody(ResponsesRequest, await self._request.body())
        if previous_id is None or self._store is None:
            return body
        if (kept := await self._store.read(self._owner, previous_id)) is None:
            raise PreviousResponseNotFound(previous_id)
        if kept.response["status"] in UNFINISHED:
            message = f"The response '{previous_id}' has not ended yet. Wait until it has, or cancel it."
            raise InvalidParameter(message, param="previous_response_id")
        content, max_bytes = joined(kept.conversation, self._body.content), self._store.max_conversation_bytes
        if len(content) > max_bytes:
            message = (
                f"The conversation has {len(content)} bytes with this request, and may have {max_bytes}. "
                "Begin another one with a summary."
            )
            raise InvalidParameter(message, param="previous_response_id")
        self._body = LongBody(ContinuedRequest, content)
        return await parsed_body(self._request, ContinuedRequest, content)

    def keeping(self, call: Call, body: ResponsesRequest, response_id: str) -> "Keeping":
        """Return the keeping of a new response to a request, with the items that the request continues."""
        if self._store is None or body.store is False:
            return Keeping(call, None)
        live = LiveResponse(self._owner, response_id)
        return Keeping(call, _Place(self._store, live, asyncio.create_task(_packed(call, self._body))))

    async def response(self, response_id: str) -> ResponseObject:
        """Return a response of this key, as far as it has come; raises UnknownObject, ResponsesUnavailable."""
        live = self._live(response_id)
        document = None if live is None else live.document(None)
        # The store has the state of one in the background, which other processes change too.
        if document is None or document["background"]:
            return (await self._kept(response_id)).response
        return document

    async def items(self, response_id: str) -> bytes:
        """Return the items that a response was made from, as JSON; raises UnknownObject, ResponsesUnavailable."""
        return (await self._kept(response_id)).items

    async def delete(self, response_id: str) -> None:
        """Delete a response; one that is not complete yet is not kept. Raises UnknownObject, ResponsesUnavailable."""
        live = self._live(response_id)
        if live is None or live.document(None)["background"]:
            await self._kept(response_id)
        assert self._store is not None, "something was found"
        await self._store.delete(self._owner, response_id)
        if live is not None:
            live.delete()

    async def cancel(self, response_id: str) -> ResponseObject:
        """End a response in the background, and return it.

        Raises:
            UnknownObject, ResponsesUnavailable: it cannot be read, or written.
            InvalidParameter: a client waits for it, and may close the connection instead.
        """
        response, live = await self.response(response_id), self._live(response_id)
        if not response["background"]:
            message = "Only a response that was created with 'background' can be cancelled. Close the connection."
            raise InvalidParameter(message, param="response_id")
        if response["status"] in UNFINISHED:
            assert self._store is not None, "something was found"
            document = None if live is None else live.document("cancelled")
            stored = await self._store.cancel(self._owner, response_id, document)
            if stored is None:  # deleted just now
                raise UnknownObject("response", response_id)
            response = stored
        if live is not None:
            live.must_end.set()
            await live.has_ended.wait()
        return response

    def _live(self, response_id: str) -> LiveResponse | None:
        return None if self._store is None else self._store.live.get((self._owner, response_id))

    async def _kept(self, response_id: str) -> Kept:
        kept = None if self._store is None else await self._store.read(self._owner, response_id)
        if kept is None:
            raise UnknownObject("response", response_id)
        return kept


async def memory(request: Request) -> ResponseMemory:
    """Return the memory of the API key of a request; that of a batch keeps nothing."""
    return ResponseMemory(request, None if call_of(request.scope).is_background else request.app.state.responses)


KeyMemory = Annotated[ResponseMemory, Depends(memory)]


class _Place:
    """Where a response is kept."""

    def __init__(self, store: ResponseStore, live: LiveResponse, items: asyncio.Task[bytes | None]) -> None:
        self.store, self.live, self._items = store, live, items
        self.claim: Claim | None = None  # of one in the background
        self._is_new = True
        self._last_write: asyncio.Task[bool] | None = None

    async def write(self, response: ResponseObject) -> bool:
        """Keep a response unless it was deleted, or has ended already; return whether one is kept.

        Raises:
            ResponsesUnavailable: the store failed.
        """
        # The thread of a write outlives its cancellation, and must not come after the next write.
        self._last_write = asyncio.create_task(self._write(response, after=self._last_write))
        return await asyncio.shield(self._last_write)

    async def _write(self, response: ResponseObject, *, after: asyncio.Task[bool] | None) -> bool:
        if after is not None:
            await asyncio.wait([after])
        if (items := await self._items) is None:
            raise ResponsesUnavailable
        if self.live.is_deleted:
            return False
        kept = await self.store.write(self.live.owner, response, items, is_new=self._is_new)
        self._is_new = False
        self._take(kept)
        return kept is not None

    async def look(self) -> None:
        """Notice what another process has done to the response: it has cancelled it, or deleted it."""
        with contextlib.suppress(ResponsesUnavailable):
            self._take(await self.store.read(self.live.owner, self.live.id))

    def _take(self, kept: Kept | None) -> None:
        if kept is None:
            self.live.delete()
        elif kept.response["status"] not in UNFINISHED:
            self.live.must_end.set()

    async def told_to_end(self) -> Message:
        """Return once the response is to end: what a request receives when its client leaves."""
        loop = asyncio.get_running_loop()
        renewed_s = loop.time()
        while not self.live.must_end.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.live.must_end.wait(), LOOK_INTERVAL_S)
                break
            await self.look()
            if self.claim is not None and loop.time() - renewed_s >= RENEW_INTERVAL_S:
                await self.store.renew(self.claim)
                renewed_s = loop.time()
        return {"type": "http.disconnect"}


class Keeping:
    """The keeping of one response while it is made."""

    def __init__(self, call: Call, place: _Place | None) -> None:
        """Keep the response at a place; None for none."""
        self.is_kept = place is not None  # until the place has failed
        self._call, self._place = call, place

    @contextlib.contextmanager
    def found_as(self, document: Callable[[ResponseStatus | None], ResponseObject]) -> Iterator[None]:
        """Let other requests find the response by its id.

        Args:
            document: returns what the response has so far, in another status if one is stated.
        """
        if self._place is None:
            yield
            return
        store, live = self._place.store, self._place.live
        live.document = document
        store.live[live.owner, live.id] = live
        try:
            yield
        finally:
            del store.live[live.owner, live.id]
            live.has_ended.set()

    async def write(self, response: ResponseObject) -> None:
        """Keep a response before it is reported complete; its `store` says whether it is kept."""
        if self._place is None:
            return
        try:
            self.is_kept = response["store"] = await self._place.write(response)
        except ResponsesUnavailable:
            self.is_kept = response["store"] = False
            with contextlib.suppress(RequestError):  # it is too late to refuse the request
                self._call.ignore(["store"])

    @contextlib.asynccontextmanager
    async def claimed(self) -> AsyncIterator[None]:
        """Claim a response that is made in the background; one that is not complete at the end has failed.

        Raises:
            ResponsesUnavailable: the store failed.
        """
        place = self._of_background()
        place.claim = claim = await place.store.claim(place.live.owner, place.live.id)
        try:
            yield
        finally:
            await place.store.release(claim)

    async def write_state(self, response: ResponseObject, *, within_s: float = 0.0) -> None:
        """Keep the next state of a response that is made in the background.

        Args:
            response: in that state; it stays as it is if it was ended otherwise.
            within_s: how long it is tried again where the store fails.

        Raises:
            ResponsesUnavailable: the store failed.
        """
        place, loop = self._of_background(), asyncio.get_running_loop()
        end_s = loop.time() + within_s
        while True:
            try:
                await place.write(response)
                return
            except ResponsesUnavailable:
                if loop.time() >= end_s:
                    raise
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def until_ended(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do work in the background; return whether it was done before the response was cancelled, or deleted."""
        try:
            await cancel_on_disconnect(self._of_background().told_to_end, work)
        except ClientDisconnected:
            return False
        return True

    def _of_background(self) -> _Place:
        assert self._place is not None, "a response in the background is kept"
        return self._place


async def _packed(call: Call, body: LongBody) -> bytes | None:
    """Return the items of a request as they are kept; None if that fails, so that the answer is given all the same."""
    try:
        if call.has_long_body:
            return await call.deadline.within(call.api.long_bodies.make(body, packed_items, call.key))
        return await call.run_in_thread(lambda: packed_items(body))
    except RequestError as error:
        logger.error("a response is not kept", exc_info=error)
        return None
