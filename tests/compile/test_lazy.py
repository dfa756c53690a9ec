import threading

import pytest

from service.compile.aot import compile_program
from service.compile.lazy import LazyExecutables
from service.compile.program import Program


def fake_executable(name):
    return compile_program(Program(name, lambda constants, state, inputs: (state, inputs)))


def test_asking_whether_one_is_there_waits_for_none():
    gate = threading.Event()

    def load(name):
        gate.wait(10)
        return fake_executable(name)

    executables = LazyExecutables(["first", "second"], load, num_first=9, num_first_threads=1, num_threads=1)
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.extend(("second" in executables, "third" in executables)))
    asking.start()
    asking.join(5)
    gate.set()
    assert answers == [True, False]
    executables.wait()


def test_one_that_is_asked_for_is_loaded_before_those_that_wait():
    gate, loaded = threading.Event(), []

    def load(name):
        if name == "first":
            gate.wait(10)
        loaded.append(name)
        return fake_executable(name)

    executables = LazyExecutables(["first", "second", "third"], load, num_first=9, num_first_threads=1, num_threads=1)
    executables["third"]
    assert loaded == ["third"]
    gate.set()
    executables.wait()
    assert sorted(loaded) == ["first", "second", "third"]
    assert list(executables) == ["first", "second", "third"]


def test_the_rest_waits_until_it_is_called_or_asked_for():
    loaded = []

    def load(name):
        loaded.append(name)
        return fake_executable(name)

    executables = LazyExecutables(
        ["first", "second", "third", "fourth"], load, num_first=1, num_first_threads=1, num_threads=2
    )
    executables["first"], executables["third"]
    assert sorted(loaded) == ["first", "third"]
    executables.load_rest()
    executables.wait()
    assert sorted(loaded) == ["first", "fourth", "second", "third"]


def test_a_failure_reaches_whoever_asks_and_whoever_waits():
    def load(name):
        raise RuntimeError(name)

    executables = LazyExecutables(["a", "b"], load, num_first=9, num_first_threads=1, num_threads=2)
    with pytest.raises(RuntimeError, match="b"):
        executables["b"]
    with pytest.raises(RuntimeError, match="a"):
        executables.wait()
    with pytest.raises(KeyError):
        executables["c"]


def test_many_threads_that_ask_for_one_get_the_same():
    num_loads = []

    def load(name):
        num_loads.append(name)
        return fake_executable(name)

    executables = LazyExecutables(list("abcdefgh"), load, num_first=9, num_first_threads=1, num_threads=2)
    results = []
    threads = [threading.Thread(target=lambda: results.append(executables["h"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    executables.wait()
    assert len({id(result) for result in results}) == 1
    assert sorted(num_loads) == list("abcdefgh")
