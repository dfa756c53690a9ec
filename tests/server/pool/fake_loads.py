"""Loads that a test begins, ends and fails, in place of starts that read weights."""

import threading
from types import SimpleNamespace

from service.catalogue.catalogue import Catalogue
from service.catalogue.entry import ModelEntry
from service.observability.metrics import Metrics
from service.server.pool.policy import PoolLimits
from service.server.pool.pool import ModelPool

WAIT_S = 20


class FakeLoaded:
    """A model in memory."""

    def __init__(self, name, log, uri, failure=None):
        self.served = SimpleNamespace(
            name=name, names=(name,), created=1, max_model_len=64, capabilities=("completions",), facts={"uri": uri}
        )
        self._log, self._failure = log, failure

    def unload(self):
        self._log.append(f"unload {self.served.name}")
        if self._failure is not None:
            raise self._failure


class FakeLoads:
    """The `Load` of a pool."""

    def __init__(self, capacity_bytes=100, **bytes_of):
        self.log = []
        self.capacity_bytes, self.bytes_of = capacity_bytes, bytes_of
        self.failures = {}  # by model: what its load raises
        self.unload_failures = {}
        self.may_load = {}  # by model: set when its bytes have arrived; others arrive at once
        self.may_complete = {}
        self.begun = {}
        self.cancelled = []
        self.lock = threading.Lock()

    def hold_back(self, name):
        self.may_load[name] = threading.Event()
        self.begun[name] = threading.Event()
        return self.may_load[name]

    def __call__(self, entry, make_room):
        return FakeLoading(self, entry, make_room)


class FakeLoading:
    def __init__(self, loads, entry, make_room):
        self._loads, self._entry, self._make_room = loads, entry, make_room
        self.is_cancelled = threading.Event()

    def wait(self):
        name, loads = self._entry.name, self._loads
        self._make_room(loads.bytes_of.get(name, 10), loads.capacity_bytes)
        loads.log.append(f"load {name}")
        if name in loads.may_load:
            loads.begun[name].set()
            assert loads.may_load[name].wait(WAIT_S)
        if self.is_cancelled.is_set():
            raise OSError("cancelled")
        if name in loads.failures:
            raise loads.failures[name]
        return FakeLoaded(name, loads.log, self._entry.uri, loads.unload_failures.get(name))

    def wait_until_complete(self):
        if (event := self._loads.may_complete.get(self._entry.name)) is not None:
            assert event.wait(WAIT_S)

    def cancel(self):
        self.is_cancelled.set()
        self._loads.cancelled.append(self._entry.name)

    def progress(self):
        return {"percent": 40, "estimated_seconds_left": 3.2}

    def summary(self):
        return "weights after 2 s, 40 of 100 bytes pulled"


def pool_of(loads, *names, max_models=2, max_waiting=50, load_wait_s=WAIT_S, metrics=None, **facts):
    entries = [ModelEntry(name=name, **({"uri": f"/models/{name}"} | facts.get(name, {}))) for name in names]
    limits = PoolLimits(max_models=max_models, max_waiting=max_waiting, load_wait_s=load_wait_s)
    return ModelPool(Catalogue(entries), loads, limits, Metrics() if metrics is None else metrics)
