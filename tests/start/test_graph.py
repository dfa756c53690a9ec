"""The runner of a start's graph: order, results, failures."""

import threading

import pytest

from service.start.graph import GraphRun, Part, describe
from service.start.load import start_graph


def returns(value):
    return lambda _: value


def raises(error: BaseException):
    def fail(_):
        raise error

    return fail


def test_a_part_gets_the_context_and_the_results_of_the_parts_it_needs():
    parts = [
        Part("two", returns(2)),
        Part("three", returns(3)),
        Part("product", lambda context, *, two, three: context * two * three, needs=("two", "three")),
    ]
    assert GraphRun(parts, 10).wait("product") == 60


def test_a_part_begins_after_those_it_only_follows_and_does_not_take_their_results():
    order = []
    may_end = threading.Event()

    def first(_):
        may_end.wait(10)
        order.append("first")

    parts = [Part("first", first), Part("second", lambda _: order.append("second"), after=("first",))]
    run = GraphRun(parts, None)
    may_end.set()
    run.wait_for_all()
    assert order == ["first", "second"]


def test_independent_parts_run_at_the_same_time():
    met = threading.Barrier(2)
    parts = [Part(name, lambda _: met.wait(10)) for name in ("one", "other")]
    GraphRun(parts, None).wait_for_all()


def test_the_first_failure_ends_every_wait_at_once_and_nothing_new_begins():
    never, failed, begun = threading.Event(), threading.Event(), []
    parts = [
        Part("endless", lambda _: never.wait()),
        Part("broken", raises(KeyError("broken"))),
        Part("dependent", lambda _, *, broken: begun.append(broken), needs=("broken",)),
    ]
    run = GraphRun(parts, None, failed=failed)
    for wait in (lambda: run.wait("endless"), lambda: run.wait("dependent"), run.wait_for_all):
        with pytest.raises(KeyError, match="broken"):
            wait()
    assert failed.is_set()
    assert begun == []
    never.set()


def test_of_two_failures_the_part_that_was_declared_first_is_raised():
    both_failed = threading.Barrier(3)

    def fail(name):
        def run(_):
            both_failed.wait(10)
            raise RuntimeError(name)

        return run

    run = GraphRun([Part("cause", fail("cause")), Part("consequence", fail("consequence"))], None)
    both_failed.wait(10)
    for thread in threading.enumerate():
        if thread.name in ("cause", "consequence"):
            thread.join(10)
    with pytest.raises(RuntimeError, match="cause"):
        run.wait_for_all()


def test_a_result_can_be_read_after_another_part_has_failed_only_as_the_failure():
    run = GraphRun([Part("good", returns(1)), Part("bad", raises(OSError("disk")))], None)
    with pytest.raises(OSError, match="disk"):
        run.wait_for_all()
    with pytest.raises(OSError, match="disk"):
        run.wait("good")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Part("a", returns(1)), Part("a", returns(2))], "two parts are named 'a'"),
        ([Part("a", returns(1), needs=("b",)), Part("b", returns(1))], "'a' waits for 'b'"),
        ([Part("a", returns(1), after=("a",))], "'a' waits for 'a'"),
    ],
)
def test_an_impossible_graph_is_refused_before_anything_runs(parts, message):
    with pytest.raises(ValueError, match=message):
        GraphRun(parts, None)


def test_times_are_recorded_in_the_order_of_the_ends():
    run = GraphRun([Part("one", returns(1)), Part("two", lambda _, *, one: one, needs=("one",))], None)
    run.wait_for_all()
    one, two = run.times
    assert (one.part.name, two.part.name) == ("one", "two")
    assert one.begin_s <= one.end_s <= two.begin_s <= two.end_s


def test_the_description_names_every_part_its_needs_and_what_it_does():
    def sum_up(_, *, one):
        """Sum up.

        More.
        """

    text = describe([Part("one", returns(1)), Part("two", returns(2)), Part("sum", sum_up, ("one",), after=("two",))])
    assert text.splitlines()[-1].split(maxsplit=3) == ["sum", "one", "(two)", "Sum up."]


def test_every_part_of_a_start_says_what_it_does_and_takes_what_it_needs():
    import inspect

    for part in start_graph([Part("api", returns(None), after=("bundle",))]):
        if part.name != "api":
            assert part.summary.endswith(".") or part.summary.endswith(":"), part.name
            parameters = inspect.signature(part.run).parameters.values()
            taken = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            assert taken == set(part.needs), part.name
