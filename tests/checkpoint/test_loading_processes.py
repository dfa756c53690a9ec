"""Several processes that load through one cache, some of them killed: right weights, and nothing fetched twice."""

import random
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.checkpoint.streamed import OBJECTS, Loader, same_weights
from tests.fault_proxy import Fault
from tests.gcs import GcsBucket
from tests.storage.cache.test_processes import finished, kill, wait_until
from tests.stored import contents

SLOWLY = Fault("safetensors.*alt=media", times=1000, bytes_per_s=150_000)  # a second for all, two slices at a time

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(loader: Loader, spawn: Start) -> Start:
    """Start a process that loads and holds."""

    def start_one(module: str = "tests.checkpoint.load_process", *prefix: str) -> subprocess.Popen[str]:
        return spawn(module, loader.endpoint, loader.bucket_name, *prefix, str(loader.root))

    return start_one


def verdict(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return next((line.strip() for line in process.stdout if line.strip() in ("right", "wrong")), "nothing")


@pytest.mark.slow
def test_two_processes_and_one_is_killed(loader: Loader, gcs_bucket: GcsBucket, start: Start):
    gcs_bucket.faults([SLOWLY])
    first = start()
    wait_until(lambda: len(gcs_bucket.requests("safetensors.*alt=media")) >= 5)
    second = start()
    kill(first)
    assert verdict(second) == "right"
    assert contents(loader.visible()[0]) == OBJECTS


@pytest.mark.slow
def test_eight_processes_that_load_or_pull_and_one_is_killed(loader: Loader, gcs_bucket: GcsBucket, start: Start):
    gcs_bucket.faults([SLOWLY])
    pulling = [start("tests.storage.pull_process", "llama") for _ in range(6)]
    loading = [start(), start()]
    wait_until(lambda: len(gcs_bucket.requests("safetensors.*alt=media")) >= 2)
    # If it was the one that fetches, one that waited takes over.
    kill(pulling.pop(0))
    assert [verdict(process) for process in loading] == ["right"] * 2
    assert {finished(process) for process in pulling} == set(loader.visible())
    assert contents(loader.visible()[0]) == OBJECTS


@pytest.mark.slow
@pytest.mark.parametrize("num_rounds", [1, 4])
def test_killed_at_random_moments_it_ends_with_the_right_weights(
    loader: Loader, gcs_bucket: GcsBucket, start: Start, num_rounds: int
):
    """Kill five processes at a time, so that one that waited takes over and is killed too."""
    for _ in range(num_rounds):
        gcs_bucket.faults([SLOWLY])
        processes = [start() for _ in range(5)]
        wait_until(lambda: gcs_bucket.requests("safetensors.*alt=media") or loader.visible())
        for process in processes:
            time.sleep(random.random() * 0.5)
            kill(process)
            assert all(contents(folder) == OBJECTS for folder in loader.visible())
    gcs_bucket.faults([])
    assert same_weights(loader.load())
    assert contents(loader.visible()[0]) == OBJECTS
    assert not list(loader.root.rglob("*.part"))
