"""The eviction policy of the pool: LRU with a minimum residency, as pure functions of plain numbers.

A model with open requests is never evicted. A model stays for a while after it was loaded, so that requests alternating
between models do not spend all the time on loading. Once a request has waited long for a model, a busy one yields: it
accepts no more requests and is evicted when its last one has finished.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# A model stays at least as long as its load took, so that at most half of the time is spent on loading; but not longer
# than this, since requests for other models may be waiting for an idle one.
MAX_RESIDENCY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """Limits on loaded models and waiting requests."""

    max_models: int  # loaded at the same time
    max_waiting: int  # requests that wait for models
    load_wait_s: float  # per request

    @property
    def yield_after_s(self) -> float:
        """How long a request waits before a busy model yields; leaves the other half of the time for loading."""
        return self.load_wait_s / 2


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A model in memory."""

    name: str
    num_bytes: int  # on each device: weights, cache and work space
    num_open: int = 0  # requests that use it
    last_used_s: float = 0.0
    ready_s: float = 0.0
    load_s: float = 0.0  # how long its load took
    keeps_loaded: bool = False
    is_leaving: bool = False  # whether it accepts no more requests

    @property
    def stays_until_s(self) -> float:
        """The earliest time at which the model may be evicted."""
        return self.ready_s + min(self.load_s, MAX_RESIDENCY_S)


@dataclass(frozen=True, kw_only=True)
class Newcomer:
    """A model that requests wait for."""

    num_bytes: int
    waiting_since_s: float  # of the oldest request


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The limits for all loaded models together."""

    max_models: int
    num_bytes: int  # of each device
    yield_after_s: float  # how long a request waits before a busy model yields


@dataclass(frozen=True)
class Enter:
    """There is room."""


@dataclass(frozen=True)
class Evict:
    """Evict these models; busy ones accept no more requests and are evicted when they are idle."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """Decide again when a model is evicted or becomes idle, or at this time."""

    until_s: float | None = None


@dataclass(frozen=True)
class NeverFits:
    """No eviction can make enough room."""

    available_bytes: int  # without the pinned models
    num_pinned: int  # models with keep_loaded


type Decision = Enter | Evict | Wait | NeverFits


def decide(newcomer: Newcomer, residents: Sequence[Resident], capacity: Capacity, now_s: float) -> Decision:
    """Decide how to make room for a model; all times are on the same clock, in seconds."""
    pinned = [resident for resident in residents if resident.keeps_loaded]
    available_bytes = capacity.num_bytes - _bytes(pinned)
    if newcomer.num_bytes > available_bytes or len(pinned) >= capacity.max_models:
        return NeverFits(available_bytes, len(pinned))
    if _fits(newcomer, residents, capacity):
        return Enter()
    staying = [resident for resident in residents if not resident.is_leaving]
    if _fits(newcomer, staying, capacity):
        return Wait()
    movable = [resident for resident in staying if not resident.keeps_loaded]
    rested = [resident for resident in movable if resident.stays_until_s <= now_s]
    excess_bytes = _bytes(staying) + newcomer.num_bytes - capacity.num_bytes
    num_excess = len(staying) + 1 - capacity.max_models
    yield_s = newcomer.waiting_since_s + capacity.yield_after_s
    idle = [resident for resident in rested if not resident.num_open]
    for candidates in (idle, *([rested] if yield_s <= now_s else [])):
        if (chosen := choose(candidates, excess_bytes, num_excess)) is not None:
            return Evict(tuple(resident.name for resident in chosen))
    later = [resident.stays_until_s for resident in movable] + [yield_s]
    return Wait(min((time_s for time_s in later if time_s > now_s), default=None))


def choose(candidates: Sequence[Resident], excess_bytes: int, num_excess: int) -> list[Resident] | None:
    """Return the smallest sufficient set of models, preferring least recently used ones; None if all are not enough.

    Args:
        candidates: models that may be evicted.
        excess_bytes: bytes to free; 0 or less for none.
        num_excess: the minimum number of models to evict.
    """
    by_size = sorted(candidates, key=lambda resident: -resident.num_bytes)
    sizes = range(max(num_excess, 1), len(candidates) + 1)
    size = next((size for size in sizes if _bytes(by_size[:size]) >= excess_bytes), None)
    if size is None:
        return None
    chosen: list[Resident] = []
    for resident in sorted(candidates, key=lambda resident: (resident.last_used_s, resident.name)):
        others = [other for other in by_size if other not in (*chosen, resident)]
        if _bytes([*chosen, resident, *others[: size - len(chosen) - 1]]) >= excess_bytes:
            chosen.append(resident)
        if len(chosen) == size:
            break
    return chosen


def _fits(newcomer: Newcomer, residents: Sequence[Resident], capacity: Capacity) -> bool:
    has_bytes = _bytes(residents) + newcomer.num_bytes <= capacity.num_bytes
    return has_bytes and len(residents) < capacity.max_models


def _bytes(residents: Sequence[Resident]) -> int:
    return sum(resident.num_bytes for resident in residents)
