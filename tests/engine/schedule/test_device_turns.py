"""Engines that share devices take turns by the time that their steps take."""

import itertools
import threading

import pytest

from service.engine.loop import StepPipeline
from service.engine.request import Request, Sampling
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.device_turns import DeviceTurns
from service.engine.schedule.scheduler import Scheduler
from tests.engine.conftest import SHAPES
from tests.sockets import wait_until


class Device:
    """A device whose steps take a time of their own; it stands still in between."""

    def __init__(self):
        self.now_s = 0.0
        self.turns = DeviceTurns(lambda: self.now_s)
        self.order = []
        self.is_busy = False

    def run(self, name, engine, seconds):
        with engine.turn():
            assert not self.is_busy
            self.is_busy = True
            self.order.append(name)
            self.now_s += seconds
            self.is_busy = False


@pytest.fixture
def device():
    return Device()


def test_short_steps_run_as_long_together_as_the_long_ones_of_another_model(device):
    long, short = device.turns.join(), device.turns.join()
    for engine in (long, short):
        engine.begin_work()
    device.run("long", long, 3.25)

    def work(name, engine, seconds, num_steps):
        for _ in range(num_steps):
            device.run(name, engine, seconds)
        engine.end_work()

    threads = [
        threading.Thread(target=work, args=("long", long, 3.25, 2)),
        threading.Thread(target=work, args=("short", short, 1.0, 9)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert "".join(name[0] for name in device.order) == "l" + "ssss" + "l" + "sss" + "l" + "ss"
    assert (long.used_s, short.used_s) == (9.75, 9.0)


def test_an_engine_that_begins_to_work_has_saved_up_nothing(device):
    first, second, late = (device.turns.join() for _ in range(3))
    for engine in (first, second):
        engine.begin_work()
    device.run("first", first, 5.0)
    device.run("second", second, 4.0)
    late.begin_work()
    assert late.used_s == 4.0
    late.begin_work()  # as it does whenever a message comes
    assert late.used_s == 4.0


def test_no_engine_waits_for_one_without_work(device):
    alone, idle = device.turns.join(), device.turns.join()
    alone.begin_work()
    assert not alone.is_contended
    device.run("alone", alone, 5.0)
    idle.begin_work()
    assert alone.is_contended
    idle.end_work()
    assert not alone.is_contended
    device.run("alone", alone, 5.0)
    assert device.order == ["alone", "alone"]


def test_a_step_that_fails_gives_its_turn_back(device):
    failing, other = device.turns.join(), device.turns.join()
    for engine in (failing, other):
        engine.begin_work()
    with pytest.raises(ZeroDivisionError), failing.turn():
        1 / 0  # noqa: B018
    device.run("other", other, 1.0)
    assert device.order == ["other"]


def test_a_turn_begins_when_the_one_before_has_ended(device):
    holder, other = device.turns.join(), device.turns.join()
    for engine in (holder, other):
        engine.begin_work()
    thread = threading.Thread(target=device.run, args=("other", other, 1.0))
    with holder.turn():
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert device.order == []
    thread.join(10)
    assert device.order == ["other"]


def test_of_two_engines_that_wait_the_one_that_has_used_less_runs_first():
    seconds = itertools.count(0.0)  # the clock goes on with each look, so that no patience is left
    turns, order = DeviceTurns(lambda: next(seconds)), []
    holder, most, less = turns.join(), turns.join(), turns.join()
    for engine in (holder, most, less):
        engine.begin_work()
    with most.turn():
        pass

    def run(name, engine):
        with engine.turn():
            order.append(name)

    threads = [threading.Thread(target=run, args=args) for args in (("most", most), ("less", less))]
    with holder.turn():
        for thread in threads:
            thread.start()
        wait_until(lambda: most.is_waiting and less.is_waiting)
    for thread in threads:
        thread.join(10)
    assert order == ["less", "most"]


def test_a_device_waits_a_moment_and_no_longer_for_the_engine_that_comes_first(device):
    busy, first = device.turns.join(), device.turns.join()
    for engine in (busy, first):
        engine.begin_work()
    device.run("busy", busy, 1.0)
    thread = threading.Thread(target=device.run, args=("busy", busy, 1.0))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()  # the clock stands still, and `first` has used less
    device.now_s += 1.0
    thread.join(10)
    assert device.order == ["busy", "busy"]


def test_a_step_ends_in_its_turn_where_another_engine_has_work(runner):
    turns, delivered = DeviceTurns(), []
    own, other = turns.join(), turns.join()
    own.begin_work()
    scheduler = Scheduler(
        num_slots=SHAPES.num_slots, num_pages=24, page_size=SHAPES.page_size, chunking=Chunking.of(SHAPES)
    )
    pipeline = StepPipeline(scheduler, runner, delivered.extend, own)
    scheduler.add(Request("a", (2, 3), 6, Sampling(temperature=0.0)))
    pipeline.step()
    assert delivered == []  # the step is in flight
    other.begin_work()
    pipeline.step()
    assert len(delivered) == 2
    pipeline.step()
    assert len(delivered) == 3
    assert own.used_s > 0
    other.end_work()
    pipeline.step()
    assert len(delivered) == 3  # it runs ahead again
    while not pipeline.is_idle:
        pipeline.step()
    assert len(delivered) == 6
