"""The state of one model in a pool: whether it is in memory, and the requests that hold it or wait for it."""

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
    def served(self) -> "Served":
        """The model as the API knows it."""
        ...

    @property
    def running(self) -> "Running":
        """Its engine or encoder."""
        ...

    def unload(self) -> None:
        """End its thread and let its files go."""
        ...


@runtime_checkable
class Loading(Protocol):
    """The load of a model under way."""

    def wait(self) -> Loaded:
        """Wait until it answers; raises why it cannot."""
        ...

    def wait_until_complete(self) -> None:
        """Wait until nothing of it is left to load or compile."""
        ...

    def cancel(self) -> None:
        """End its transfers; `wait` raises then."""
        ...

    def progress(self) -> dict[str, Any]:
        """Return how far it is, as a JSON object."""
        ...

    def summary(self) -> str:
        """Return the same as a phrase."""
        ...


# Returns once the device has room for so many bytes, of so many that models may take; or raises why it never will.
type MakeRoom = Callable[[int, int], None]
type Load = Callable[[ModelEntry, MakeRoom], Loading]


@dataclass(eq=False)
class Waiter:
    """A request that waits for a model, on the event loop that it came by."""

    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Lease]"
    since_s: float


@dataclass(eq=False)
class Residence:
    """One model of the pool; the pool's lock guards all of it."""

    entry: ModelEntry
    state: Literal["available", "loading", "ready", "unloading"] = "available"
    is_in_line: bool = False  # to be loaded
    is_requested: bool = False  # by a start or an operator, so that it is loaded though no request waits
    is_cancelled: bool = False  # by an operator, while it loads
    is_leaving: bool = False  # it takes no further requests
    loading: Loading | None = None
    loaded: Loaded | None = None
    unloading: Future[None] | None = None  # by operators; done once it is
    num_bytes: int = 0  # on each device; 0 while it has no room there
    num_open: int = 0  # requests that hold it, and its own start until that is complete
    num_loads: int = 0
    last_used_s: float = 0.0
    ready_s: float = 0.0
    load_s: float = 0.0
    failure: tuple[str, float] | None = None  # of its last load: why, and when
    known: "ModelState | None" = None  # what /v1/models said when it was last ready
    waiters: list[Waiter] = field(default_factory=list)
    older: "Residence | None" = None  # the version before, which answers until this one is ready

    @property
    def is_open(self) -> bool:
        """Whether a request may hold it now."""
        return self.state == "ready" and not self.is_leaving

    @property
    def answering(self) -> "Residence":
        """The version that a request holds: the one before while it is open and this one is not."""
        return self.older if self.older is not None and self.older.is_open and not self.is_open else self

    @property
    def versions(self) -> "Iterator[Residence]":
        """This version and those before it, as far as they are in memory."""
        version: Residence | None = self
        while version is not None:
            yield version
            version = version.older

    @property
    def resident(self) -> Resident:
        """The model as the policy sees it."""
        return Resident(
            name=self.entry.uri,
            num_bytes=self.num_bytes,
            num_open=self.num_open,
            last_used_s=self.last_used_s,
            ready_s=self.ready_s,
            load_s=self.load_s,
            keeps_loaded=self.entry.keeps_loaded,
            is_leaving=self.is_leaving,
        )
