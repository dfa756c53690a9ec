"""The models that make room for another one: plain functions of plain numbers, without an engine or a clock.

A model with open requests is never taken out from under them. It stays for a while after it was loaded, so that
requests which alternate between models do not spend the time on loading. Once a request has waited long for a model, a
busy one yields: it takes no further requests, and goes when its last one is finished.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# A model stays at least as long as its load took, so that at most half of the time goes into loading; but not longer
# than this, since whoever waits for another model may wait for an idle one.
MAX_RESIDENCY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A model in memory."""

    name: str
    num_bytes: int  # on each device: weights, cache and work space
    num_open: int = 0  # requests that hold it
    last_used_s: float = 0.0
    ready_s: float = 0.0
    load_s: float = 0.0  # how long its load took
    keeps_loaded: bool = False
    is_leaving: bool = False  # it takes no further requests

    @property
    def stays_until_s(self) -> float:
        """When it may first be taken out."""
        return self.ready_s + min(self.load_s, MAX_RESIDENCY_S)


@dataclass(frozen=True, kw_only=True)
class Newcomer:
    """A model that requests wait for."""

    num_bytes: int
    waiting_since_s: float  # of the oldest request


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What the loaded models may take together."""

    max_models: int
    num_bytes: int  # of each device
    yield_after_s: float  # how long a request waits before a busy model yields


@dataclass(frozen=True)
class Enter:
    """There is room."""


@dataclass(frozen=True)
class Evict:
    """These make room; those that are busy take no further requests and go when they are idle."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """Decide again when a model goes or becomes idle, or at this time."""

    until_s: float | None = None


@dataclass(frozen=True)
class NeverFits:
    """No eviction makes room."""

    available_bytes: int  # without the models that stay loaded
    num_kept: int  # models that stay loaded


type Decision = Enter | Evict | Wait | NeverFits


def decide(newcomer: Newcomer, residents: Sequence[Resident], capacity: Capacity, now_s: float) -> Decision:
    """Decide how a model gets its room; times are on one clock, in seconds."""
    kept = [resident for resident in residents if resident.keeps_loaded]
    available_bytes = capacity.num_bytes - _bytes(kept)
    if newcomer.num_bytes > available_bytes or len(kept) >= capacity.max_models:
        return NeverFits(available_bytes, len(kept))
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
    """Return the fewest models that free enough, the least recently used ones of them; None if all do not free enough.

    Args:
        candidates: models that may go.
        excess_bytes: bytes to free, 0 or less for none.
        num_excess: models to take out at least.
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
