"""Adapters are read once for all who wait, and dropped when others need the memory."""

import asyncio
import threading

import numpy as np
import pytest

from service.catalogue.entry import ModelEntry
from service.engine.request import Adapter
from service.errors import ModelLoadFailed, Overloaded, RefusedAdapter
from service.server.pool.adapters import HostAdapters

pytestmark = pytest.mark.anyio
NUM_BYTES = 4


@pytest.fixture
def anyio_backend():
    return "asyncio"


def entry(name: str, version: str = "v1") -> ModelEntry:
    return ModelEntry(name=name, uri="gs://b/base", adapter_uri=f"gs://b/{name}", base="base", version=version)


class Reads:
    """Reads of adapters, which a test may hold back or refuse."""

    def __init__(self):
        self.names: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.refused: set[str] = set()

    def __call__(self, name: str, uri: str) -> Adapter:
        self.names.append(name)
        assert self.may_end.wait(20)
        if name in self.refused:
            raise RefusedAdapter(uri, "adapter_config.json", "use_dora", "DoRA is not served")
        return Adapter(name, name.encode(), ((np.zeros(NUM_BYTES // 4, np.float32),),))


async def test_all_who_wait_for_an_adapter_get_that_of_one_reading_even_if_the_first_has_left():
    adapters, read = HostAdapters(100, 10), Reads()
    read.may_end.clear()
    waiting = [asyncio.create_task(adapters.get(entry("a"), read)) for _ in range(20)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    read.may_end.set()
    [_, *others] = await asyncio.gather(*waiting, return_exceptions=True)
    here = await adapters.get(entry("a"), read)
    assert all(other is here for other in others)
    assert read.names == ["a"]


async def test_the_least_recently_used_go_beyond_the_limit_and_a_new_version_is_read():
    adapters, read = HostAdapters(2 * NUM_BYTES, 10), Reads()
    for name in "abac":
        await adapters.get(entry(name), read)
    assert ([adapters.is_here(entry(name)) for name in "abc"], adapters.num_bytes) == (
        [True, False, True],
        2 * NUM_BYTES,
    )
    await adapters.get(entry("c", "v2"), read)
    assert read.names == ["a", "b", "c", "c"]
    assert adapters.forget(entry("c", "v2"))
    assert not adapters.forget(entry("c", "v2"))
    assert adapters.num_bytes == NUM_BYTES


async def test_what_was_refused_is_not_read_again_at_once():
    adapters, read = HostAdapters(100, 10), Reads()
    read.refused.add("a")
    for _ in range(3):
        with pytest.raises(ModelLoadFailed) as refused:
            await adapters.get(entry("a"), read)
        assert "DoRA" in refused.value.reason
    assert read.names == ["a"]
    assert (await adapters.get(entry("b"), read)).name == "b"


async def test_of_a_thousand_readings_at_once_most_are_refused_and_none_is_lost():
    adapters, read = HostAdapters(1000, 8), Reads()
    read.may_end.clear()
    waiting = [asyncio.create_task(adapters.get(entry(f"{number}"), read)) for number in range(1000)]
    await asyncio.sleep(0)
    read.may_end.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(outcome, Adapter) for outcome in outcomes) == 8
    assert sum(isinstance(outcome, Overloaded) for outcome in outcomes) == 992
    assert (await adapters.get(entry("999"), read)).name == "999"


async def test_why_an_adapter_was_refused_is_known_until_it_is_read():
    adapters, read = HostAdapters(100, 10), Reads()
    read.refused = {"a"}
    for name in "ab":
        await asyncio.gather(adapters.get(entry(name), read), return_exceptions=True)
    assert "DoRA is not served" in str(adapters.error_of(entry("a")))
    assert "gs://" not in str(adapters.error_of(entry("a")))
    assert adapters.error_of(entry("b")) is None
    adapters.forget(entry("a"))
    assert adapters.error_of(entry("a")) is None
