import threading

import pytest

from service.compile.aot import compile_program
from service.compile.lazy import BuildPlan, LazyExecutables
from service.compile.program import Program


def fake_executable(name):
    return compile_program(Program(name, lambda constants, state, inputs: (state, inputs)))


def lazily(names, make, *, num_first=9, num_first_threads=1, num_rest_threads=1, **options):
    return LazyExecutables(names, num_first, BuildPlan(make, num_first_threads, num_rest_threads, **options))


class Gated:
    """Makes executables, the first one only once its gate is open, and notes their order."""

    def __init__(self, gated="first"):
        self.gate, self.made, self._gated = threading.Event(), [], gated

    def __call__(self, name):
        if name == self._gated:
            assert self.gate.wait(10)
        self.made.append(name)
        return fake_executable(name)


def test_asking_whether_one_is_there_waits_for_none():
    make = Gated()
    executables = lazily(["first", "second"], make)
    assert ["second" in executables, "third" in executables] == [True, False]
    make.gate.set()
    executables.wait()


def test_one_that_is_asked_for_is_made_before_those_that_wait():
    make = Gated()
    executables = lazily(["first", "second", "third"], make)
    executables["third"]
    assert make.made == ["third"]
    make.gate.set()
    executables.wait()
    assert sorted(make.made) == ["first", "second", "third"]
    assert list(executables) == ["first", "second", "third"]


def test_where_lookups_make_none_themselves_the_one_asked_for_comes_next():
    make, found, preferred = Gated(), [], threading.Event()

    class Observed(LazyExecutables):
        def prefer(self, names):
            super().prefer(names)
            preferred.set()

    executables = Observed(["first", "second", "third"], 9, BuildPlan(make, 1, 1, builds_on_lookup=False))
    asking = threading.Thread(target=lambda: found.append(executables["third"]))
    asking.start()
    assert preferred.wait(10)
    assert not executables.is_usable("third")
    make.gate.set()
    asking.join(10)
    assert executables.is_usable("third")
    executables.wait()
    assert make.made == ["first", "third", "second"]
    assert found == [executables["third"]]


def test_preferred_ones_come_first_in_their_order_and_also_out_of_the_rest():
    make = Gated()
    executables = lazily([*list("abcdef"), "first"], make, num_first=0, builds_on_lookup=False)
    executables.prefer(["first"])
    executables.prefer(["e", "d"])
    executables.prefer(["first", "c"])  # the first of them is being made already
    make.gate.set()
    executables.wait()
    assert make.made == ["first", "c", "e", "d", "a", "b", "f"]


def test_every_thread_that_makes_the_rest_is_announced_and_has_the_stack_that_was_asked_for():
    announced = []
    barrier = threading.Barrier(2, timeout=10)

    def make(name):
        barrier.wait()  # two threads at once
        return fake_executable(name)

    executables = lazily(
        list("abcd"),
        make,
        num_first=0,
        num_rest_threads=2,
        stack_bytes=2**24,
        on_rest_thread=lambda: announced.append(threading.get_ident()),
    )
    size = threading.stack_size()
    executables.wait()
    assert len(set(announced)) == 2
    assert threading.stack_size() == size


def test_the_rest_waits_until_it_is_called_or_asked_for():
    make = Gated(gated=None)
    executables = lazily(["first", "second", "third", "fourth"], make, num_first=1, num_rest_threads=2)
    executables["first"], executables["third"]
    assert sorted(make.made) == ["first", "third"]
    executables.build_rest()
    executables.wait()
    assert sorted(make.made) == ["first", "fourth", "second", "third"]


@pytest.mark.parametrize("builds_on_lookup", [True, False])
def test_a_failure_reaches_whoever_asks_and_whoever_waits_and_the_others_are_made(builds_on_lookup):
    def make(name):
        if name in "ab":
            raise RuntimeError(name)
        return fake_executable(name)

    executables = lazily(["a", "b", "c"], make, builds_on_lookup=builds_on_lookup)
    with pytest.raises(RuntimeError, match="b"):
        executables["b"]
    with pytest.raises(RuntimeError, match="a"):
        executables.wait()
    assert executables["c"]
    assert builds_on_lookup or [executables.is_usable(name) for name in "abc"] == [False, False, True]
    assert executables.num_built == 1
    with pytest.raises(KeyError):
        executables["d"]


@pytest.mark.parametrize("builds_on_lookup", [True, False])
def test_many_threads_that_ask_for_one_get_the_same(builds_on_lookup):
    make = Gated(gated=None)
    executables = lazily(list("abcdefgh"), make, builds_on_lookup=builds_on_lookup)
    results = []
    threads = [threading.Thread(target=lambda: results.append(executables["h"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    executables.wait()
    assert len({id(result) for result in results}) == 1
    assert sorted(make.made) == list("abcdefgh")
