"""A crew does every task, tells its first failure, and grows only while its threads wait."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable

import pytest

from service.storage.crew import work_off


def test_all_tasks_are_done_once():
    done: list[int] = []
    work_off(deque(range(100)), lambda: done.append, max_threads=4, cancel=lambda: None)
    assert sorted(done) == list(range(100))


def test_first_failure_is_raised_after_the_others_were_told():
    cancelled = threading.Event()

    def begin() -> Callable[[int], None]:
        def do(task: int) -> None:
            if task == 0:
                raise ValueError("task 0")
            cancelled.wait(10)

        return do

    with pytest.raises(ValueError, match="task 0"):
        work_off(deque(range(3)), begin, max_threads=2, cancel=cancelled.set)
    assert cancelled.is_set()


def test_threads_that_wait_get_company(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    names: set[str] = set()

    def wait(task: int) -> None:
        names.add(threading.current_thread().name)
        time.sleep(0.06)

    work_off(deque(range(20)), lambda: wait, max_threads=3, cancel=lambda: None)
    assert names == {"pull-0", "pull-1", "pull-2"}


@pytest.mark.skipif(sys.platform != "linux", reason="another thread's clock cannot be read")
def test_threads_that_work_get_none_however_long_a_task_takes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    names: set[str] = set()

    def work(task: int) -> None:
        names.add(threading.current_thread().name)
        until_s = time.thread_time() + 0.25
        while time.thread_time() < until_s:
            pass

    work_off(deque(range(3)), lambda: work, max_threads=3, cancel=lambda: None)
    assert names == {"pull-0"}
