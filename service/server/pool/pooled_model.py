"""A model in a pool: the requests for it, and each of its versions from the beginning of its load to its unload."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from service.catalogue.entry import ModelEntry
from service.server.pool.policy import Resident

if TYPE_CHECKING:
    from service.api.backend import Lease, ModelState
    from service.api.served import Served
    from service.start.kinds.model_spec import Running


class State(StrEnum):
    """Where one load of a model is."""

    LOADING = "loading"
    CANCELLING = "cancelling"  # an operator has cancelled the load, which has not ended yet
    READY = "ready"  # requests can use it
    LEAVING = "leaving"  # in memory until its last request ends, and accepts no more
    UNLOADING = "unloading"
    GONE = "gone"  # not in memory


class Event(StrEnum):
    """What happens to a load and to what it has loaded."""

    CANCEL = "cancel"
    LOADED = "loaded"
    FAILED = "failed"
    LEAVE = "leave"  # an operator, a newer version or the policy wants it to go
    STAY = "stay"  # the model that it was to make room for is not loaded after all
    UNLOAD = "unload"  # begins
    UNLOADED = "unloaded"


# Every transition; an event without one in the current state is a mistake of the pool.
TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.LOADING: {Event.LOADED: State.READY, Event.FAILED: State.GONE, Event.CANCEL: State.CANCELLING},
    State.CANCELLING: {Event.LOADED: State.LEAVING, Event.FAILED: State.GONE, Event.CANCEL: State.CANCELLING},
    State.READY: {Event.LEAVE: State.LEAVING},
    State.LEAVING: {Event.STAY: State.READY, Event.UNLOAD: State.UNLOADING},
    State.UNLOADING: {Event.UNLOADED: State.GONE},
    State.GONE: {},
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
class Residence:
    """One load of a model, and what it has loaded until that is unloaded. Belongs to the event loop."""

    entry: ModelEntry
    number: int  # of the loads of its model that may become ready, from 1 on
    began_s: float
    gone: asyncio.Future[None]  # done once it is unloaded or its load has failed; raises if it cannot be unloaded
    state: State = State.LOADING  # changed only by `on`
    loading: Loading | None = None  # until nothing is left to load or compile
    loaded: Loaded | None = None
    num_bytes: int = 0  # reserved on each device
    num_open: int = 0  # requests that use it, and its own start until that is complete
    ready_s: float = 0.0
    last_used_s: float = 0.0

    def on(self, event: Event) -> None:
        """Change the state by `TRANSITIONS`."""
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"{self.entry.name}: {event} while {self.state}"
        self.state = following

    @property
    def is_loading(self) -> bool:
        """Whether the load is running, cancelled or not."""
        return self.state in (State.LOADING, State.CANCELLING)

    @property
    def is_in_memory(self) -> bool:
        """Whether it can answer its open requests."""
        return self.state in (State.READY, State.LEAVING)

    @property
    def load_s(self) -> float:
        """How long the load took."""
        return self.ready_s - self.began_s

    @property
    def resident(self) -> Resident:
        """The residence for the eviction policy."""
        return Resident(
            name=self.entry.address,
            num_bytes=self.num_bytes,
            num_open=self.num_open,
            last_used_s=self.last_used_s,
            ready_s=self.ready_s,
            load_s=self.load_s,
            keeps_loaded=self.entry.keeps_loaded,
            is_leaving=self.state is not State.READY,
        )


@dataclass(eq=False)
class PooledModel:
    """All versions of a model, and the requests for it. Belongs to the event loop."""

    entry: ModelEntry  # the version to load next, or loaded last
    residences: list[Residence] = field(default_factory=list)  # not gone; the newest is the last
    waiters: "dict[asyncio.Future[Lease], float]" = field(default_factory=dict)  # requests, and since when they wait
    is_requested: bool = False  # by a start or an operator, so that it is loaded without waiting requests
    failure: tuple[str, float, str | None] | None = None  # of the last failed load: reason, time, what clients see
    last: Residence | None = None  # that was ready
    known: "ModelState | None" = None  # its state in /v1/models when it was last unloaded

    @property
    def newest(self) -> Residence | None:
        return self.residences[-1] if self.residences else None

    @property
    def is_open(self) -> bool:
        """Whether requests can use the wanted version now."""
        newest = self.newest
        return newest is not None and newest.state is State.READY and newest.entry.address == self.entry.address

    @property
    def is_loading(self) -> bool:
        return self.newest is not None and self.newest.is_loading

    @property
    def answering(self) -> Residence | None:
        """The version that serves requests: the previous one until the newest is ready."""
        return next((each for each in reversed(self.residences) if each.state is State.READY), None)
