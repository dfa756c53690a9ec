"""The runner of a start's graph: order, results, failures."""

import threading

import pytest

from service.start.graph import GraphRun, Task, describe, direct_edges
from service.start.load import start_graph


def returns(value):
    return lambda _: value


def raises(error: BaseException):
    def fail(_):
        raise error

    return fail


def test_a_part_gets_the_context_and_the_results_of_the_parts_it_needs():
    tasks = [
        Task("two", returns(2)),
        Task("three", returns(3)),
        Task("product", lambda context, *, two, three: context * two * three, needs=("two", "three")),
    ]
    assert GraphRun(tasks, 10).wait("product") == 60


def test_a_part_begins_after_those_it_only_follows_and_does_not_take_their_results():
    order = []
    may_end = threading.Event()

    def first(_):
        may_end.wait(10)
        order.append("first")

    tasks = [Task("first", first), Task("second", lambda _: order.append("second"), after=("first",))]
    run = GraphRun(tasks, None)
    may_end.set()
    run.wait_for_all()
    assert order == ["first", "second"]


def test_independent_parts_run_at_the_same_time():
    met = threading.Barrier(2)
    tasks = [Task(name, lambda _: met.wait(10)) for name in ("one", "other")]
    GraphRun(tasks, None).wait_for_all()


def test_the_first_failure_ends_every_wait_at_once_and_nothing_new_begins():
    never, failed, begun = threading.Event(), threading.Event(), []
    tasks = [
        Task("endless", lambda _: never.wait()),
        Task("broken", raises(KeyError("broken"))),
        Task("dependent", lambda _, *, broken: begun.append(broken), needs=("broken",)),
    ]
    run = GraphRun(tasks, None, failed=failed)
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

    run = GraphRun([Task("cause", fail("cause")), Task("consequence", fail("consequence"))], None)
    both_failed.wait(10)
    for thread in threading.enumerate():
        if thread.name in ("cause", "consequence"):
            thread.join(10)
    with pytest.raises(RuntimeError, match="cause"):
        run.wait_for_all()


def test_a_result_can_be_read_after_another_part_has_failed_only_as_the_failure():
    run = GraphRun([Task("good", returns(1)), Task("bad", raises(OSError("disk")))], None)
    with pytest.raises(OSError, match="disk"):
        run.wait_for_all()
    with pytest.raises(OSError, match="disk"):
        run.wait("good")


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([Task("a", returns(1)), Task("a", returns(2))], "two tasks are named 'a'"),
        ([Task("a", returns(1), needs=("b",)), Task("b", returns(1))], "'a' waits for 'b'"),
        ([Task("a", returns(1), after=("a",))], "'a' waits for 'a'"),
    ],
)
def test_an_impossible_graph_is_refused_before_anything_runs(tasks, message):
    with pytest.raises(ValueError, match=message):
        GraphRun(tasks, None)


def test_times_are_recorded_in_the_order_of_the_ends():
    run = GraphRun([Task("one", returns(1)), Task("two", lambda _, *, one: one, needs=("one",))], None)
    run.wait_for_all()
    one, two = run.times
    assert (one.task.name, two.task.name) == ("one", "two")
    assert one.begin_s <= one.end_s <= two.begin_s <= two.end_s


def test_the_description_names_every_part_its_needs_and_what_it_does():
    def sum_up(_, *, one):
        """Sum up.

        More.
        """

    text = describe([Task("one", returns(1)), Task("two", returns(2)), Task("sum", sum_up, ("one",), after=("two",))])
    assert text.splitlines()[-1] == "| `sum` | `one`, (`two`) | Sum up. |"


def test_an_edge_that_follows_from_a_longer_way_is_not_direct():
    tasks = [
        Task("a", returns(1)),
        Task("b", returns(1), needs=("a",)),
        Task("c", returns(1), needs=("a", "b")),
        Task("d", returns(1), needs=("a",), after=("a",)),
    ]
    assert direct_edges(tasks) == [("a", "b"), ("b", "c"), ("a", "d")]


def test_every_task_of_a_start_says_what_it_does_and_takes_what_it_needs():
    import inspect

    for task in start_graph([Task("api", returns(None), after=("bundle",))]):
        if task.name != "api":
            assert task.summary.endswith(".") or task.summary.endswith(":"), task.name
            parameters = inspect.signature(task.run).parameters.values()
            taken = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            assert taken == set(task.needs), task.name
