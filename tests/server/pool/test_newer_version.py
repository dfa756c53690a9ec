"""A newer version of a model is loaded beside the old one, and requests move over."""

import asyncio

import pytest

from service.catalogue.catalogue import Catalogue
from service.catalogue.entry import ListedModel, ModelEntry
from service.observability.metrics import Metrics
from service.server.pool.policy import PoolLimits
from service.server.pool.pool import ModelPool
from tests.server.pool.fake_loads import WAIT_S, FakeLoads

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Run:
    """A catalogue of a run, whose newest step a test chooses, and of another model."""

    def __init__(self, *, max_models=3, **bytes_of):
        self.step = 1
        self.loads = FakeLoads(**bytes_of)
        self.catalogue = Catalogue([ModelEntry(name="run", uri="", pin="latest")], uri="/models", listing=self._list)
        self.catalogue.refresh()
        limits = PoolLimits(max_models=max_models, max_waiting=50, load_wait_s=WAIT_S)
        self.pool = ModelPool(self.catalogue, self.loads, limits, Metrics())

    def _list(self):
        return [ListedModel("other", "v", None), ListedModel("run", str(self.step), self.step)]

    def train(self):
        self.step += 1
        self.catalogue.refresh()

    async def step_of_a_request(self):
        held = self.pool.lease("run") or await self.pool.wait_for("run")
        held.release()
        return held.model.facts["uri"]

    async def until_it_is(self, step):
        async with asyncio.timeout(WAIT_S):
            while await self.step_of_a_request() != f"/models/run/step-{step}":
                await asyncio.sleep(0.005)
            while self.pool.report("run")["memory_bytes"] != 10:
                await asyncio.sleep(0.005)


async def test_requests_move_over_once_the_newer_version_is_ready():
    run = Run()
    held = run.pool.lease("run") or await run.pool.wait_for("run")
    may_load = run.loads.hold_back("run")
    run.train()
    assert await run.step_of_a_request() == "/models/run/step-1"  # which begins the load
    await asyncio.to_thread(run.loads.begun["run"].wait, WAIT_S)
    assert await run.step_of_a_request() == "/models/run/step-1"
    states = {state.names[0]: state.state for state in run.pool.listed()}
    assert (states["run"], run.pool.report("run")["memory_bytes"]) == ("ready", 20)
    may_load.set()
    async with asyncio.timeout(WAIT_S):
        while await run.step_of_a_request() != "/models/run/step-2":
            await asyncio.sleep(0.005)
    assert run.loads.log == ["load run", "load run"]  # the older one still answers
    held.release()
    await run.until_it_is(2)
    assert run.loads.log == ["load run", "load run", "unload run"]


async def test_where_both_do_not_fit_the_older_version_goes_first_and_no_other_model():
    run = Run(max_models=2)
    await run.step_of_a_request()
    (run.pool.lease("other") or await run.pool.wait_for("other")).release()
    held = run.pool.lease("run")
    run.train()
    waiting = asyncio.create_task(run.until_it_is(2))
    async with asyncio.timeout(WAIT_S):
        while (again := run.pool.lease("run")) is not None:
            again.release()
            await asyncio.sleep(0.005)
    assert "unload run" not in run.loads.log
    held.release()
    await waiting
    assert run.loads.log == ["load run", "load other", "unload run", "load run"]


async def test_a_newer_version_that_cannot_be_loaded_leaves_the_older_one_answering():
    run = Run()
    await run.step_of_a_request()
    run.loads.failures["run"] = OSError("its upload was not complete")
    run.train()
    async with asyncio.timeout(WAIT_S):
        while run.pool.report("run")["failure"] is None:
            assert await run.step_of_a_request() == "/models/run/step-1"
            await asyncio.sleep(0.005)
    assert await run.step_of_a_request() == "/models/run/step-1"
    assert run.pool.report("run")["memory_bytes"] == 10
    assert run.loads.log == ["load run", "load run"]  # and not again at once


async def test_an_operator_unloads_both_versions():
    run = Run()
    await run.step_of_a_request()
    may_load = run.loads.hold_back("run")
    run.train()
    await run.step_of_a_request()
    await asyncio.to_thread(run.loads.begun["run"].wait, WAIT_S)
    unloading = asyncio.create_task(run.pool.unload("run"))
    while not run.loads.cancelled:
        await asyncio.sleep(0.005)
    may_load.set()
    assert await unloading
    assert run.pool.loaded == []
    assert run.pool.report("run")["memory_bytes"] == 0
