"""Several processes on one cache, some of them killed: the bytes stay right and nothing is fetched twice."""

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault_proxy import Fault
from tests.stored import Puller, contents

OBJECTS = {f"shard-{index}": random.Random(index).randbytes(100_000) for index in range(6)}
SLOWLY = Fault("alt=media", times=1000, bytes_per_s=400_000)  # a second and a half for all, two at a time

Start = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def sharded(puller: Puller) -> Puller:
    for name, data in OBJECTS.items():
        puller.bucket.upload(f"sharded/{name}", data)
    return Puller(puller.bucket, puller.root, prefix="sharded")


@pytest.fixture
def start(sharded: Puller, spawn: Callable[..., subprocess.Popen[str]]) -> Start:
    """Start a process that pulls and holds."""
    arguments = [sharded.bucket.endpoint, sharded.bucket.name, sharded.prefix, str(sharded.root)]
    return lambda: spawn("tests.storage.pull_process", *arguments)


def wait_until(is_so: Callable[[], object], limit_s: float = 60) -> None:
    give_up_at = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def finished(process: subprocess.Popen[str]) -> Path:
    """Return the folder that a process prints, whose checkpoint it still holds."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("/"):
            return Path(line.strip())
    raise AssertionError(f"the process ended with {process.wait()} before the checkpoint was complete")


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "num_requests", [5, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3, 8, 10))]
)
def test_a_killed_pull_goes_on_with_what_is_missing(sharded: Puller, start: Start, num_requests: int):
    sharded.bucket.faults([SLOWLY])
    process = start()
    wait_until(lambda: len(sharded.bucket.media_requests()) >= num_requests)
    time.sleep(random.random() * 0.2)
    kill(process)
    whole = {path.name for path in sharded.root.glob("checkpoints/*/shard-*")}
    assert not sharded.visible()

    sharded.bucket.faults([])
    assert contents(sharded.pull().path) == OBJECTS
    fetched = {name for name in OBJECTS if sharded.bucket.requests(f"{name}.*alt=media")}
    assert fetched == OBJECTS.keys() - whole
    assert not list(sharded.root.rglob("*.part"))


def test_a_process_waits_for_another_and_goes_on_when_that_one_is_killed(sharded: Puller, start: Start):
    sharded.bucket.faults([SLOWLY])
    first = start()
    wait_until(lambda: len(sharded.bucket.media_requests()) >= 5)
    second, third = start(), start()
    wait_until(lambda: list(sharded.root.glob("checkpoints/*/shard-*")))
    kill(first)
    assert finished(second) == finished(third)
    assert contents(sharded.visible()[0]) == OBJECTS


def test_processes_that_start_together_fetch_everything_once(sharded: Puller, start: Start):
    sharded.bucket.faults([])
    processes = [start() for _ in range(3)]
    assert len({finished(process) for process in processes}) == 1
    assert len(sharded.bucket.media_requests()) == 2 * len(OBJECTS)  # two slices each


def test_a_checkpoint_that_another_process_serves_is_not_evicted_until_it_ends(sharded: Puller, start: Start):
    process = start()
    path = finished(process)
    evicting = Puller(sharded.bucket, sharded.root, max_checkpoints=1)
    evicting.pull().release()  # another prefix, so another checkpoint
    assert contents(path) == OBJECTS
    kill(process)
    evicting.bucket.upload("model/new", b"new")
    evicting.pull().release()
    assert not path.exists()
