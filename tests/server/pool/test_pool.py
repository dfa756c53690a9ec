"""Models are loaded once, for those who wait; they go when they are idle; nobody waits for ever."""

import asyncio
import threading
import time

import pytest

from service.errors import (
    Draining,
    MissingParameter,
    ModelLoadFailed,
    ModelNotLoaded,
    Overloaded,
    UnknownModel,
)
from service.observability.metrics import Metrics
from tests.server.pool.fake_loads import FakeLoads, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def use(pool, name):
    """One request from its beginning to its end; return the model that answered."""
    held = pool.lease(name) or await pool.wait_for(name)
    await asyncio.sleep(0)
    held.release()
    return held.model.name


def loaded(pool):
    return [state.names[0] for state in pool.listed() if state.state == "ready"]


async def begun(loads, name):
    await asyncio.to_thread(loads.begun[name].wait, 20)


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def use_and_rest(pool, name):
    """One request; then wait until every loaded model may be evicted."""
    assert await use(pool, name) == name
    await until(lambda: all(report["is_complete"] for report in pool.reports() if report["state"] == "ready"))
    await asyncio.sleep(0.001 + max(report["start_seconds"] or 0 for report in pool.reports()))


async def test_concurrent_requests_load_a_model_once():
    loads = FakeLoads()
    pool = pool_of(loads, "a")
    assert pool.lease("a") is None
    assert await asyncio.gather(*(use(pool, "a") for _ in range(20))) == ["a"] * 20
    assert await use(pool, "a") == "a"
    assert loads.log == ["load a"]


async def test_the_least_recently_used_model_makes_room():
    loads = FakeLoads()
    pool = pool_of(loads, *"abc")
    for name in "abac":
        await use_and_rest(pool, name)
    assert loads.log == ["load a", "load b", "unload b", "load c"]
    assert loaded(pool) == ["a", "c"]


async def test_a_model_and_the_same_one_with_an_adapter_go_apart():
    loads = FakeLoads()
    same = {"uri": "/models/a", "adapter_uri": "/adapters/b", "base": "a"}
    pool = pool_of(loads, *"abc", b=same)
    for name in "bac":
        await use_and_rest(pool, name)
    assert loads.log == ["load b", "load a", "unload b", "load c"]
    assert {state.names[0]: state.parent for state in pool.listed()} == {"a": None, "b": "a", "c": None}


async def test_the_bytes_decide_and_not_the_number_alone():
    loads = FakeLoads(a=40, b=40, c=60)
    pool = pool_of(loads, *"abc", max_models=3)
    for name in "abc":
        await use_and_rest(pool, name)
    assert loads.log == ["load a", "load b", "unload a", "load c"]


async def test_loads_and_evictions_are_counted_by_model():
    loads, metrics = FakeLoads(a=30), Metrics()
    loads.failures["bad"] = OSError("the disk is full")
    pool = pool_of(loads, "a", "b", "bad", max_models=1, metrics=metrics)
    await use(pool, "a")
    held = metrics.registry.get_sample_value("levserve_model_memory_bytes", {"model_name": "a"})
    await use(pool, "b")
    await pool.unload("b")
    with pytest.raises(ModelLoadFailed):
        await pool.wait_for("bad")

    def value(name, model, **labels):
        return metrics.registry.get_sample_value(f"levserve_model_{name}", {"model_name": model, **labels})

    assert (held, value("memory_bytes", "a"), value("memory_bytes", "b")) == (30, 0, 0)
    assert [value("evictions_total", name) for name in ("a", "b", "bad")] == [1, 0, 0]  # an operator unloaded b
    assert [value("loads_total", name, outcome="ready") for name in "ab"] == [1, 1]
    assert value("loads_total", "bad", outcome="failed") == 1
    assert [value("load_seconds_count", name) for name in ("a", "b", "bad")] == [1, 1, 0]


async def test_a_model_with_an_open_request_stays_until_it_has_ended():
    loads = FakeLoads()
    pool = pool_of(loads, *"ab", max_models=1)
    held = await pool.wait_for("a")
    waiting = asyncio.create_task(use(pool, "b"))
    await until(lambda: pool.listed()[1].state == "loading")
    assert not waiting.done()
    assert loads.log == ["load a"]
    held.release()
    assert await waiting == "b"
    assert loads.log == ["load a", "unload a", "load b"]


async def test_a_model_that_is_always_busy_yields_and_its_requests_wait_their_time():
    loads = FakeLoads()
    pool = pool_of(loads, *"ab", max_models=1, load_wait_s=1)
    stop = False
    answered = {"a": 0, "b": 0}

    async def keep_busy():
        while not stop:
            held = pool.lease("a") or await pool.wait_for("a")
            await asyncio.sleep(0.01)
            answered["a"] += 1
            held.release()

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(keep_busy())
        await until(lambda: answered["a"] > 4)
        assert await use(pool, "b") == "b"
        before = answered["a"]
        await until(lambda: answered["a"] > before)
        stop = True
    assert loads.log[:4] == ["load a", "unload a", "load b", "unload b"]


async def test_a_model_that_never_fits_is_refused_with_the_numbers_and_takes_no_room():
    loads = FakeLoads(a=10, big=101)
    pool = pool_of(loads, "a", "big")
    await use(pool, "a")
    with pytest.raises(ModelLoadFailed) as refused:
        await pool.wait_for("big")
    assert "needs 101 bytes on each device, but 100 are available" in refused.value.reason
    assert loads.log == ["load a"]


async def test_a_load_that_fails_tells_those_who_wait_and_leaves_the_others():
    loads = FakeLoads()
    loads.failures["bad"] = OSError("the disk is full")
    pool = pool_of(loads, "a", "bad")
    await use(pool, "a")
    results = await asyncio.gather(*(pool.wait_for("bad") for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [ModelLoadFailed] * 3
    assert [result.reason for result in results] == ["the disk is full"] * 3
    assert "disk" not in str(results[0])  # which clients see
    with pytest.raises(ModelLoadFailed):  # it is not tried again at once
        await pool.wait_for("bad")
    assert loads.log == ["load a", "load bad"]
    assert await use(pool, "a") == "a"


async def test_an_unload_that_fails_gives_its_room_all_the_same():
    loads = FakeLoads()
    loads.unload_failures["a"] = OSError("no copy")
    pool = pool_of(loads, "a", "b", max_models=1)
    assert await use(pool, "a") == "a"
    with pytest.raises(ModelLoadFailed) as refused:
        await use(pool, "b")
    assert refused.value.reason == "no copy"
    assert [report["state"] for report in pool.reports()] == ["available", "available"]
    loads.unload_failures.clear()
    assert await use(pool, "a") == "a"


async def test_the_wait_has_an_end_with_the_progress_and_the_load_goes_on():
    loads = FakeLoads()
    may_load = loads.hold_back("a")
    pool = pool_of(loads, "a", load_wait_s=0.05)
    with pytest.raises(ModelNotLoaded, match="40 of 100 bytes pulled") as raised:
        await pool.wait_for("a")
    assert raised.value.retry_after_s == 3
    [state] = pool.listed()
    assert (state.state, state.facts["progress"]["percent"]) == ("loading", 40)
    may_load.set()
    await until(lambda: loaded(pool) == ["a"])
    assert await use(pool, "a") == "a"


async def test_a_model_that_nobody_waits_for_any_more_takes_no_room():
    loads = FakeLoads()
    pool = pool_of(loads, *"ab", max_models=1)
    held = await pool.wait_for("a")
    waiting = asyncio.create_task(pool.wait_for("b"))
    await until(lambda: pool.listed()[1].state == "loading")
    waiting.cancel()
    await until(lambda: pool.listed()[1].state == "available")
    pool.lease("a").release()
    held.release()
    assert loads.log == ["load a"]
    assert await use(pool, "b") == "b"


async def test_a_client_that_leaves_while_its_model_comes_holds_nothing():
    loads = FakeLoads()
    may_load = loads.hold_back("a")
    pool = pool_of(loads, *"ab", max_models=1)
    waiting = [asyncio.create_task(pool.wait_for("a")) for _ in range(3)]
    await begun(loads, "a")
    may_load.set()
    for task in waiting:
        task.cancel()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    for held in outcomes:
        if not isinstance(held, BaseException):
            held.release()
    assert await use(pool, "b") == "b"  # a has no holder left


async def test_more_requests_than_may_wait_are_refused():
    loads = FakeLoads()
    may_load = loads.hold_back("a")
    pool = pool_of(loads, "a", max_waiting=2)
    waiting = [asyncio.create_task(use(pool, "a")) for _ in range(2)]
    await begun(loads, "a")
    with pytest.raises(Overloaded):
        await pool.wait_for("a")
    may_load.set()
    assert await asyncio.gather(*waiting) == ["a", "a"]


async def test_a_model_stays_until_its_own_start_is_complete():
    loads = FakeLoads()
    may_complete = loads.may_complete["a"] = threading.Event()
    pool = pool_of(loads, *"ab", max_models=1)
    await use(pool, "a")
    waiting = asyncio.create_task(use(pool, "b"))
    await until(lambda: pool.listed()[1].state == "loading")
    assert loads.log == ["load a"]
    may_complete.set()
    assert await waiting == "b"


async def test_a_model_that_stays_loaded_makes_room_for_none():
    pool = pool_of(FakeLoads(), *"ab", max_models=1, a={"keeps_loaded": True})
    await use(pool, "a")
    with pytest.raises(ModelLoadFailed) as refused:
        await pool.wait_for("b")
    assert "1 of at most 1 models have keep_loaded set" in refused.value.reason


async def test_an_operator_loads_and_unloads():
    loads = FakeLoads()
    pool = pool_of(loads, *"ab")
    pool.begin_load("a")
    await until(lambda: loaded(pool) == ["a"])
    held = pool.lease("a")
    unloading = asyncio.create_task(pool.unload("a"))
    await until(lambda: loaded(pool) == [])
    assert pool.lease("a") is None
    assert not unloading.done()
    held.release()
    assert await unloading
    assert loads.log == ["load a", "unload a"]
    assert not await pool.unload("b")
    with pytest.raises(UnknownModel):
        await pool.unload("x")


async def test_a_load_that_an_operator_ends_is_no_failure_of_the_model():
    loads = FakeLoads()
    may_load = loads.hold_back("a")
    pool = pool_of(loads, "a")
    pool.begin_load("a")
    await begun(loads, "a")
    unloading = asyncio.create_task(pool.unload("a"))
    await until(lambda: loads.cancelled == ["a"])
    may_load.set()
    assert await unloading
    assert pool.report("a")["state"] == "available"
    assert pool.report("a")["failure"] is None
    assert await use(pool, "a") == "a"


async def test_a_request_during_an_unload_loads_the_model_again_which_then_stays():
    loads = FakeLoads()
    pool = pool_of(loads, "a")
    held = await pool.wait_for("a")
    unloading = asyncio.create_task(pool.unload("a"))
    await until(lambda: pool.report("a")["is_leaving"])
    waiting = asyncio.create_task(pool.wait_for("a"))
    await until(lambda: pool.report("a")["waiting_requests"] == 1)
    held.release()
    again = await waiting
    assert await unloading
    again.release()
    assert loads.log == ["load a", "unload a", "load a"]
    assert await use(pool, "a") == "a"


async def test_an_operator_sees_what_each_model_takes_and_does():
    loads = FakeLoads(a=30)
    loads.failures["b"] = OSError("the disk is full")
    pool = pool_of(loads, *"abc")
    held = await pool.wait_for("a")
    with pytest.raises(ModelLoadFailed):
        await pool.wait_for("b")
    await until(lambda: pool.report("a")["progress"] is None)
    a, b, c = pool.reports()
    assert (a["state"], a["memory_bytes"], a["open_requests"], a["starts"]) == ("ready", 30, 1, 1)
    assert abs(a["last_used_at"] - time.time()) < 60
    assert (b["state"], b["memory_bytes"], b["starts"], b["failure"]["reason"]) == (
        "available",
        0,
        0,
        "the disk is full",
    )
    assert (c["starts"], c["last_used_at"], c["failure"]) == (0, None, None)
    assert [report["id"] for report in pool.reports(is_used=True)] == ["a", "b"]
    held.release()
    assert pool.report("a")["open_requests"] == 0


async def test_a_pool_that_is_closed_refuses_those_who_wait_and_loads_no_more():
    loads = FakeLoads()
    may_load = loads.hold_back("b")
    pool = pool_of(loads, *"ab")
    await use(pool, "a")
    waiting = asyncio.create_task(pool.wait_for("b"))
    await begun(loads, "b")
    pool.close()
    may_load.set()
    with pytest.raises(Draining):
        await waiting
    assert pool.lease("a") is None
    with pytest.raises(Draining):
        await pool.wait_for("a")


async def test_a_request_without_a_name_means_the_only_model():
    assert await use(pool_of(FakeLoads(), "a"), None) == "a"
    with pytest.raises(MissingParameter):
        pool_of(FakeLoads(), *"ab").lease(None)


async def test_a_hundred_swaps_among_four_models_lose_nothing():
    loads = FakeLoads()
    pool = pool_of(loads, *"abcd")

    async def client(offset):
        for turn in range(25):
            name = "abcd"[(turn + offset) % 4]
            assert await use(pool, name) == name

    await asyncio.gather(*(client(offset) for offset in range(4)))
    await until(lambda: len(loaded(pool)) == 2)
    assert sum(line.startswith("load") for line in loads.log) - sum(line.startswith("unl") for line in loads.log) == 2
    await until(lambda: not [thread for thread in threading.enumerate() if thread.name == "load"])
