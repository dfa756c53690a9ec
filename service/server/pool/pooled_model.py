"""The state of one model in a pool: whether it is in memory, and the requests that use it or wait for it."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from service.catalogue.entry import ModelEntry
from service.server.pool.policy import Resident

if TYPE_CHECKING:
    from service.api.backend import Lease, ModelState
    from service.api.served import Served
    from service.start.kinds.model_spec import Running


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
    state: Literal["available", "loading", "ready", "unloading"] = "available"
    is_queued: bool = False  # whether it is in the load queue
    is_requested: bool = False  # by a start or an operator, so that it is loaded without waiting requests
    is_cancelled: bool = False  # by an operator, during its load
    is_leaving: bool = False  # whether it accepts no more requests
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

    @property
    def is_open(self) -> bool:
        """Whether requests can use the model now."""
        return self.state == "ready" and not self.is_leaving

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
