"""The state of one model in a pool: whether it is in memory, and the requests that use it or wait for it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from service.catalogue.entry import ModelEntry
from service.server.pool.policy import Resident

if TYPE_CHECKING:
    from service.api.backend import Lease, ModelState
    from service.api.served import Served
    from service.start.kinds.model_spec import Running


class State(StrEnum):
    """Where a model is between its checkpoint and memory."""

    AVAILABLE = "available"  # not in memory
    LOADING = "loading"
    CANCELLING = "cancelling"  # an operator has cancelled the load, which has not ended yet
    READY = "ready"  # requests can use it
    LEAVING = "leaving"  # in memory until its last request ends, and accepts no more
    CANCELLED = "cancelled"  # as `LEAVING`, because its load was cancelled too late to stop it
    UNLOADING = "unloading"


class Event(StrEnum):
    """What happens to a model."""

    LOAD = "load"  # begins
    CANCEL = "cancel"
    LOADED = "loaded"
    FAILED = "failed"
    LEAVE = "leave"  # an operator, a newer version or the policy wants it to go
    STAY = "stay"  # the model that it was to make room for is not loaded after all
    UNLOAD = "unload"  # begins
    UNLOADED = "unloaded"


# Every transition; an event without one in the current state is a mistake of the pool.
TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.AVAILABLE: {Event.LOAD: State.LOADING, Event.FAILED: State.AVAILABLE},  # failed before it began
    State.LOADING: {Event.LOADED: State.READY, Event.FAILED: State.AVAILABLE, Event.CANCEL: State.CANCELLING},
    State.CANCELLING: {
        Event.LOADED: State.CANCELLED,
        Event.FAILED: State.AVAILABLE,
        Event.CANCEL: State.CANCELLING,
    },
    State.READY: {Event.LEAVE: State.LEAVING},
    State.LEAVING: {Event.LEAVE: State.LEAVING, Event.STAY: State.READY, Event.UNLOAD: State.UNLOADING},
    State.CANCELLED: {Event.LEAVE: State.CANCELLED, Event.STAY: State.CANCELLED, Event.UNLOAD: State.UNLOADING},
    State.UNLOADING: {Event.UNLOADED: State.AVAILABLE},
}


@runtime_checkable
class Loaded(Protocol):
    """A model in memory."""

    @property
    def served(self) -> "Served": ...

    @property
    def running(self) -> "Running": ...

    def unload(self) -> None:
        """Stop the device thread and release the files."""
        ...


@runtime_checkable
class Loading(Protocol):
    """The running load of a model."""

    def wait(self) -> Loaded:
        """Wait until the model can answer; raises the reason if it cannot."""
        ...

    def wait_until_complete(self) -> None:
        """Wait until nothing is left to load or compile."""
        ...

    def cancel(self) -> None:
        """Stop the transfers, which makes `wait` raise."""
        ...

    def progress(self) -> dict[str, Any]:
        """Return the progress as a JSON object."""
        ...

    def summary(self) -> str:
        """Return the progress as a phrase."""
        ...


# Called with the bytes needed and the bytes available to models; returns once there is room, or raises if there never
# will be.
type MakeRoom = Callable[[int, int], None]
type Load = Callable[[ModelEntry, MakeRoom], Loading]


@dataclass(eq=False)
class Waiter:
    """A request that waits for a model on its event loop."""

    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Lease]"
    since_s: float


@dataclass(eq=False)
class PooledModel:
    """A model of the pool; all fields are guarded by the pool's lock."""

    entry: ModelEntry
    state: State = State.AVAILABLE  # changed by `on` alone
    is_queued: bool = False  # whether it is in the load queue
    is_requested: bool = False  # by a start or an operator, so that it is loaded without waiting requests
    loading: Loading | None = None
    loaded: Loaded | None = None
    unloading: Future[None] | None = None  # done once the model is unloaded
    num_bytes: int = 0  # reserved on each device
    num_open: int = 0  # requests that use it, and its own start until that is complete
    num_loads: int = 0
    last_used_s: float = 0.0
    ready_s: float = 0.0
    load_s: float = 0.0
    failure: tuple[str, float] | None = None  # reason and time of the last failed load
    known: "ModelState | None" = None  # its state in /v1/models when it was last ready
    waiters: list[Waiter] = field(default_factory=list)
    older: "PooledModel | None" = None  # previous version; serves until this one is ready

    def on(self, event: Event) -> None:
        """Change the state by `TRANSITIONS`."""
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"{self.entry.name}: {event} while {self.state}"
        self.state = following

    @property
    def is_open(self) -> bool:
        """Whether requests can use the model now."""
        return self.state is State.READY

    @property
    def is_leaving(self) -> bool:
        """Whether the model is in memory, but accepts no more requests."""
        return self.state in (State.LEAVING, State.CANCELLED)

    @property
    def is_in_memory(self) -> bool:
        """Whether the model can answer its open requests."""
        return self.is_open or self.is_leaving

    @property
    def is_loading(self) -> bool:
        """Whether a load is running, cancelled or not."""
        return self.state in (State.LOADING, State.CANCELLING)

    @property
    def reported_state(self) -> Literal["available", "loading", "ready", "unloading"]:
        """The state for operators, who see `is_leaving` beside it."""
        if self.is_loading:
            return "loading"
        if self.is_in_memory:
            return "ready"
        return "unloading" if self.state is State.UNLOADING else "available"

    @property
    def answering(self) -> "PooledModel":
        """The version that serves requests: the previous one while it is open and this one is not."""
        return self.older if self.older is not None and self.older.is_open and not self.is_open else self

    @property
    def versions(self) -> "Iterator[PooledModel]":
        """This version and previous ones that are still in memory."""
        version: PooledModel | None = self
        while version is not None:
            yield version
            version = version.older

    @property
    def resident(self) -> Resident:
        """The model for the eviction policy."""
        return Resident(
            name=self.entry.address,
            num_bytes=self.num_bytes,
            num_open=self.num_open,
            last_used_s=self.last_used_s,
            ready_s=self.ready_s,
            load_s=self.load_s,
            keeps_loaded=self.entry.keeps_loaded,
            is_leaving=self.is_leaving,
        )
