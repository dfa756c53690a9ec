"""The runner of a start's tasks: order, results, failures."""

import threading

import pytest

from service.start.context import StartContext
from service.start.graph import Task, Tasks
from service.start.load import add_start


def returns(value):
    return lambda _: value


def raises(error: BaseException):
    def fail(_):
        raise error

    return fail


@pytest.fixture
def tasks() -> Tasks[int]:
    return Tasks()


def test_a_task_gets_the_context_and_the_results_of_those_it_needs(tasks):
    two, three = tasks.add("two", returns(2)), tasks.add("three", returns(3))
    product = tasks.add("product", lambda context, left, right: context * left * right, two, three)
    tasks.begin(10)
    assert product.wait() == 60


def test_a_task_begins_after_those_it_only_follows_and_does_not_take_their_results(tasks):
    order = []
    may_end = threading.Event()

    def run_first(_):
        may_end.wait(10)
        order.append("first")

    first = tasks.add("first", run_first)
    tasks.add("second", lambda _: order.append("second"), after=[first])
    tasks.begin(0)
    may_end.set()
    tasks.wait()
    assert order == ["first", "second"]


def test_independent_tasks_run_at_the_same_time(tasks):
    met = threading.Barrier(2)
    for name in ("one", "other"):
        tasks.add(name, lambda _: met.wait(10))
    tasks.begin(0)
    tasks.wait()


def test_the_first_failure_ends_every_wait_at_once_and_nothing_new_begins(tasks):
    never, failed, begun = threading.Event(), threading.Event(), []
    endless = tasks.add("endless", lambda _: never.wait())
    broken = tasks.add("broken", raises(KeyError("broken")))
    dependent = tasks.add("dependent", lambda _, result: begun.append(result), broken)
    tasks.begin(0, failed)
    for wait in (endless.wait, dependent.wait, tasks.wait):
        with pytest.raises(KeyError, match="broken"):
            wait()
    assert failed.is_set()
    assert begun == []
    never.set()


def test_of_two_failures_the_task_that_was_declared_first_is_raised(tasks):
    both_failed = threading.Barrier(3)

    def fail(name):
        def run(_):
            both_failed.wait(10)
            raise RuntimeError(name)

        return run

    for name in ("cause", "consequence"):
        tasks.add(name, fail(name))
    tasks.begin(0)
    both_failed.wait(10)
    for thread in threading.enumerate():
        if thread.name in ("cause", "consequence"):
            thread.join(10)
    with pytest.raises(RuntimeError, match="cause"):
        tasks.wait()


def test_a_result_can_be_read_after_another_task_has_failed_only_as_the_failure(tasks):
    good = tasks.add("good", returns(1))
    tasks.add("bad", raises(OSError("disk")))
    tasks.begin(0)
    with pytest.raises(OSError, match="disk"):
        tasks.wait()
    with pytest.raises(OSError, match="disk"):
        good.wait()


def test_times_are_recorded_in_the_order_of_the_ends(tasks):
    one = tasks.add("one", returns(1))
    two = tasks.add("two", lambda _, result: result, one)
    tasks.begin(0)
    tasks.wait()
    assert tasks.done == [one, two]
    assert one.begin_s <= one.end_s <= two.begin_s <= two.end_s


def test_the_table_names_every_task_its_needs_and_what_it_does(tasks):
    def sum_up(_, one):
        """Sum up.

        More.
        """

    one, two = tasks.add("one", returns(1)), tasks.add("two", returns(2))
    tasks.add("sum", sum_up, one, after=[two])
    assert tasks.table().splitlines()[-1] == "| `sum` | `one`, (`two`) | Sum up. |"


def test_every_task_of_a_start_has_its_own_name_and_says_what_it_does():
    def import_api(_: StartContext) -> None:
        """Import the API."""

    tasks = Tasks[StartContext]()
    added = add_start(tasks, import_api)
    rows = [line.split("|") for line in tasks.table().splitlines()[2:]]
    names = [name.strip() for _, name, *_ in rows]
    assert len(names) == len(set(names))
    assert all(does.strip().endswith((".", ":")) for *_, does, _ in rows)
    assert isinstance(added.model, Task)
    assert added.model.name == "model"
