"""One HTTP request, from its arrival to its log line."""

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope

from service.api.http.ignored import IgnoredFields
from service.api.http.keys import NO_KEY, ApiKey, owner_of
from service.api.http.request_queue import Place, RequestQueue
from service.api.schema.ignored import IgnoredField
from service.errors import BodyTooLarge, ClientDisconnected, DeadlineExceeded, QueueTimeout
from service.observability.clock import Clock, QueueDeadline
from service.observability.metrics import Metrics
from service.observability.trace_context import TraceContext, parse_trace_context

if TYPE_CHECKING:
    from service.api.backend import Backend, Lease
    from service.api.served import Served, ServedEncoder, ServedModel, ServedSpeechModel
    from service.api.work.long_body import LongBodies, LongBody
    from service.api.work.media import MediaProcesses
    from service.api.work.remote_images import RemoteImages
    from service.api.work.text_threads import TextThreads
    from service.text.prompt_model import PromptModel

CALL = "levserve.call"  # the scope's entry for the request's `Call`, which no client can set
CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
MAX_USER_CHARS = 128  # of the end user's name in the log


@dataclass(frozen=True)
class ApiContext:
    """State that all requests share."""

    backend: "Backend"
    metrics: Metrics
    request_timeout_s: float
    default_max_tokens: int | None
    default_temperature: float | None
    queue: RequestQueue
    text_threads: "TextThreads"
    long_bodies: "LongBodies"
    media: "MediaProcesses"
    max_body_bytes: int  # of a body without its images
    remote_images: "RemoteImages | None"


class Deadline:
    """REQUEST_TIMEOUT: one moment for a whole request."""

    def __init__(self, limit_s: float, begin_s: float | None = None) -> None:
        """Begin a request's time: now, or at an earlier moment of `time.perf_counter`."""
        passed_s = 0.0 if begin_s is None else time.perf_counter() - begin_s
        self._limit_s = limit_s
        self._end_s = asyncio.get_running_loop().time() + limit_s - passed_s  # the clock of the loop's timers

    async def within[T](self, awaited: Awaitable[T]) -> T:
        """Return the result of an awaitable, cancelled at the deadline.

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


@dataclass(kw_only=True, eq=False)
class Call:
    """One HTTP request: made when it arrives, and completed by each layer that it passes."""

    id: str
    trace: TraceContext | None = None
    arrived_s: float = field(default_factory=time.perf_counter)
    ignored: IgnoredFields = field(default_factory=IgnoredFields)
    log_fields: dict[str, Any] = field(default_factory=dict)  # added to the log line; never a prompt
    key: ApiKey = NO_KEY
    cache_salt: bytes = b""  # the key's digest; only requests with the same one share cached prefixes
    batch_timeout_s: float | None = None  # the time that a batch gives its request; None: a client's request
    place: Place | None = None  # in the queue; None for a request without a body, or of a batch
    long_body: "LongBody | None" = None  # the body, once it is read, if it is long
    route: str | None = None  # as metrics and logs name it; None: that of the API which matches
    status: int | None = None  # of the answer, once it has begun
    task: asyncio.Task[Any] | None = None  # cancelled by the server if the client disconnects, whatever it awaits
    has_left: bool = False  # whether the client disconnected, and the server cancelled the task
    clocks: list[Clock] = field(default_factory=list[Clock])  # of its sequences
    leases: "list[Lease]" = field(default_factory=list)  # of models, released when the answer has ended
    # From `begin` on.
    api: ApiContext = field(init=False)
    deadline: Deadline = field(init=False)
    receive: Receive = field(init=False)  # after the body, it returns when the client disconnects

    @classmethod
    def of_client(cls, scope: Scope) -> "Call":
        """Return the call of a request that has just arrived."""
        given = header(scope, b"x-request-id")
        standard, cloud = header(scope, b"traceparent"), header(scope, b"x-cloud-trace-context")
        return cls(
            id=given if CLIENT_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}",
            trace=parse_trace_context(standard, cloud) if standard or cloud else None,
        )

    def begin(self, api: ApiContext, receive: Receive) -> None:
        """Begin to answer the request by models; called by the task that does.

        Raises:
            NotReady, Draining, EngineStopped: no model can answer now.
        """
        api.backend.check_open()
        self.task = asyncio.current_task()
        limit_s = api.request_timeout_s if self.batch_timeout_s is None else self.batch_timeout_s
        self.api, self.receive, self.deadline = api, receive, Deadline(limit_s, self.arrived_s)

    @property
    def is_background(self) -> bool:
        """Whether it belongs to a batch, and so comes after every client's request."""
        return self.batch_timeout_s is not None

    @property
    def seal_key(self) -> bytes:
        """What signs the thinking that the client keeps: of a batch, what signs that of its owner's requests."""
        return self.cache_salt if self.is_background else owner_of(self.cache_salt).encode()

    @property
    def has_long_body(self) -> bool:
        """Whether the work for the request, besides its steps, must leave time to others."""
        return self.long_body is not None

    def ignore(self, paths: Iterable[str]) -> None:
        """Name fields that are accepted and have no effect; raises UnsupportedParameter with STRICT_FIELDS."""
        self.ignored.add(IgnoredField(path) for path in paths)

    def log_user(self, user: str | None) -> None:
        """Add the client's own user to the log line, if the request names one."""
        if user is not None:
            self.log_fields["user"] = "".join(c if c.isprintable() else "?" for c in user[:MAX_USER_CHARS])

    async def model(self, name: str | None) -> "Served":
        """Return the model of this name, of any kind, which stays loaded until the answer has ended.

        Raises:
            UnknownModel, AmbiguousModel: no model, or several, have this name.
            MissingParameter: there are several models, and the name is None.
            NotReady, Draining, EngineStopped: it cannot answer now.
            ClientDisconnected, DeadlineExceeded: the client or the time was gone before it was loaded.
        """
        backend = self.api.backend
        lease = backend.lease(name)
        if lease is None:
            lease = await self.unless_disconnected(self.deadline.within(backend.wait_for(name)))
        self.leases.append(lease)
        self.log_fields["model"] = lease.model.name
        return lease.model

    async def generating(self, name: str) -> "ServedModel":
        """Return a model that continues sequences of tokens; raises as `model`, and WrongKindOfModel."""
        return (await self.model(name)).generating()

    async def encoding(self, name: str | None) -> "ServedEncoder":
        """Return a model that turns texts into vectors; raises as `generating`."""
        return (await self.model(name)).encoding()

    async def scoring(self, name: str | None) -> "ServedEncoder":
        """Return a model that scores pairs of texts; raises as `generating`."""
        return (await self.model(name)).scoring()

    async def pooling(self, name: str) -> "ServedEncoder":
        """Return a model that turns texts into vectors or scores; raises as `generating`."""
        return (await self.model(name)).pooling()

    async def hearing(self, name: str) -> "ServedSpeechModel":
        """Return a speech model; raises as `generating`."""
        return (await self.model(name)).hearing()

    def hold_bytes(self, num_bytes: int) -> None:
        """Count what the request holds in memory from now on, instead of its body; raises BodyBytesFull."""
        if self.place is not None:
            self.api.queue.hold(self.place, num_bytes)

    def check_text_bytes(self, num_image_bytes: int) -> None:
        """Check the length of the body without its images; raises BodyTooLarge."""
        if self.long_body is not None and len(self.long_body.content) - num_image_bytes > self.api.max_body_bytes:
            raise BodyTooLarge(self.api.max_body_bytes, "MAX_BODY_BYTES", param="messages")

    def release_models(self) -> None:
        """Let the models of the request be unloaded."""
        for lease in self.leases:
            lease.release()

    def wait_in_queue(self, num_tokens: int) -> QueueDeadline | None:
        """Count the request as waiting, with its number of tokens; return until when, None for no limit.

        Raises:
            QueuedTokensFull: too many tokens wait already.
            QueueTimeout: the request has waited too long already.
        """
        if self.place is None:
            return None
        queue = self.api.queue
        queue.add_prompts(self.place, num_tokens)
        limit_s = queue.caps.queue_timeout_s
        if limit_s is None:
            return None
        end_s = self.arrived_s + limit_s
        if time.perf_counter() > end_s:
            raise QueueTimeout(limit_s, retry_after_s=queue.retry_after_s())
        return QueueDeadline(end_s, limit_s)

    async def run_in_thread[T](self, work: Callable[[], T]) -> T:
        """Run work that is bounded, but too long for the event loop; raises DeadlineExceeded."""
        running = self.api.text_threads.run(work, client=self.key, is_long=self.has_long_body)
        return await self.deadline.within(running)

    async def compile[T](self, work: Callable[[], T]) -> T:
        """Run work on a grammar in one of the threads for grammars; raises DeadlineExceeded."""
        threads = self.api.text_threads
        return await self.deadline.within(threads.run(work, client=self.key, is_long=True, turns=threads.grammars))

    async def try_grammar[T](self, function: Callable[..., T], model: "PromptModel", *arguments: Any) -> T:
        """Return what a function of a module makes of a model and a grammar, in the process for long bodies.

        Raises:
            DeadlineExceeded, BodyTooLaborious: it takes too much time, or memory.
        """
        bodies = self.api.long_bodies
        tried = bodies.of_model(function, model, *arguments, client=self.key)
        return await self.deadline.within(tried)

    async def make_prompt[B, T](self, make: "Callable[[B, PromptModel], T]", body: B, model: "Served") -> T:
        """Return `make(body, model.prompt_model)`: made in a thread, or of a long body in the process for those.

        The threads are the model's, since its template may take long.

        Raises:
            DeadlineExceeded, BodyTooLaborious: it takes too much time, or memory.
        """
        if self.long_body is None:
            threads, turns = self.api.text_threads, self.api.text_threads.of_model(model.prompt_model.key)
            made = threads.run(lambda: make(body, model.prompt_model), client=self.key, turns=turns)
            return await self.deadline.within(made)
        made = self.api.long_bodies.prompt(self.long_body, make, model.prompt_model, self.key)
        return await self.deadline.within(made)

    async def unless_disconnected[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, cancelled if the client disconnects first.

        Raises:
            ClientDisconnected: the client disconnected first.
        """
        return await cancel_on_disconnect(self.receive, work)


def header(scope: Scope, name: bytes) -> str:
    """Return a header of a request, or an empty string."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def call_of(scope: Scope) -> Call:
    """Return the call of a request's scope."""
    return scope[CALL]


async def cancel_on_disconnect[T](receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, cancelled if the client disconnects first; the request's body must have been read.

    Raises:
        ClientDisconnected: the client disconnected first.
    """
    task, has_left = asyncio.current_task(), False
    assert task is not None, "a coroutine runs in a task"
    num_cancellations = task.cancelling()

    async def watch() -> None:
        nonlocal has_left
        with contextlib.suppress(Exception):  # the connection is broken
            await _disconnected(receive)
        has_left = True
        task.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.cancelling() == num_cancellations + 1:
            raise ClientDisconnected from None
        raise
    finally:
        watching.cancel()
        if has_left:
            task.uncancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
