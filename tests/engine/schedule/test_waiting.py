"""Fairness between flows: shares follow the weights, nothing starves, and one flow alone gets everything in order."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.request import BACKGROUND_PRIORITY
from service.engine.schedule.sequence import Sequence
from service.engine.schedule.waiting import OUTPUT_COST, Waiting
from tests.engine.schedule.scheduling import make_request, make_scheduler, served, step

MAX_COST = 50
weights = st.lists(st.floats(0.1, 10), min_size=2, max_size=5)
costs = st.lists(st.integers(1, MAX_COST), min_size=10, max_size=60)


class Queue:
    """A queue whose sequences are served one after another, each at once and as a whole."""

    def __init__(self):
        self.waiting, self.tokens, self.num_added = Waiting(), Counter(), 0

    def add(self, flow, weight, prompt_len=1, **options):
        request = make_request("a", prompt_len, flow=flow, weight=weight, **options)
        self.waiting.add(Sequence(request, self.num_added, b""))
        self.num_added += 1

    def serve(self, num_sampled=0):
        sequence = self.waiting.first()
        self.waiting.remove(sequence)
        self.waiting.charge_prompt(sequence)
        for _ in range(num_sampled):
            self.waiting.charge_token(sequence)
        self.tokens[sequence.request.flow] += sequence.prompt_len + OUTPUT_COST * num_sampled
        return sequence


@given(weights=weights, costs=costs)
def test_flows_that_always_wait_share_by_weight_within_one_request(weights, costs):
    queue = Queue()
    for flow, weight in enumerate(weights):
        for index in range(2):  # so that one still waits when the other is served
            queue.add(str(flow), weight, costs[(flow + index) % len(costs)])
    for cost in costs:
        num_sampled = cost % 7
        sequence = queue.serve(num_sampled)
        queue.add(sequence.request.flow, sequence.request.weight, cost)
        shares = [queue.tokens[str(flow)] / weight for flow, weight in enumerate(weights)]
        assert max(shares) - min(shares) <= (MAX_COST + 6 * OUTPUT_COST) / min(weights) + 1e-6


@given(weights=weights, costs=costs, num_before=st.integers(0, 30))
def test_nothing_starves_whatever_others_send_and_however_long_they_were_alone(weights, costs, num_before):
    queue = Queue()
    for index in range(num_before):
        queue.add("1", weights[1], costs[index % len(costs)])
        queue.serve()
    queue.add("0", weights[0])
    others = list(enumerate(weights))[1:]
    # Each other flow is served at most until its counter has passed that of the one that waits.
    for served_before in range(1 + sum(1 + int(MAX_COST * max(weights) / min(weights)) for _ in others)):
        for flow, weight in others:
            queue.add(str(flow), weight, costs[served_before % len(costs)])
        if queue.serve().request.flow == "0":
            return
    raise AssertionError("it was not served")


@given(priorities=st.lists(st.integers(-2, 2), max_size=40))
def test_one_flow_alone_is_served_by_priority_and_arrival(priorities):
    queue = Queue()
    for priority in priorities:
        queue.add("", 1.0, priority=priority)
    expected = sorted(range(len(priorities)), key=lambda index: (priorities[index], index))
    assert [queue.serve().arrival for _ in priorities] == expected
    assert len(queue.waiting) == 0


def test_idleness_earns_nothing():
    queue = Queue()
    queue.add("idle", 1.0)
    queue.serve()
    for _ in range(20):
        queue.add("busy", 1.0, 10)
        queue.serve()
    for flow in ["busy", "idle"] * 4:
        queue.add(flow, 1.0, 10)
    order = [queue.serve().request.flow for _ in range(8)]
    assert order == ["busy", "idle"] * 4


def test_priority_comes_before_fairness_and_batches_come_last():
    queue = Queue()
    queue.add("batch", 1.0, priority=BACKGROUND_PRIORITY)
    queue.add("light", 1.0)
    for _ in range(3):
        queue.add("heavy", 1.0, 40, priority=-1)
    assert [queue.serve().request.flow for _ in range(5)] == ["heavy"] * 3 + ["light", "batch"]


def run(scheduler, num_steps):
    tokens = Counter()
    for _ in range(num_steps):
        for sequence, event in step(scheduler)[1]:
            tokens[sequence.request.flow] += len(event.token_ids)
    return tokens


@pytest.mark.parametrize("weight", [1, 2, 3, 5])
@pytest.mark.usefixtures("unchecked_types")
def test_the_scheduler_gives_tokens_by_weight(weight):
    scheduler = make_scheduler(num_slots=2, num_pages=64)
    for flow, own in (("f", 1.0), ("g", float(weight))):  # the one of less weight came first
        for index in range(200):
            scheduler.add(make_request(f"{flow}{index}", 2, 4, flow=flow, weight=own))
    tokens = run(scheduler, 400)
    assert abs(tokens["g"] - weight * tokens["f"]) <= 8 * weight


def test_a_flood_of_one_flow_delays_another_by_the_running_ones_alone():
    scheduler = make_scheduler(num_slots=1, num_pages=64)
    for index in range(50):
        scheduler.add(make_request(f"flood{index}", 2, 2, flow="flood"))
    step(scheduler)
    scheduler.add(make_request("other", 2, 2, flow="other"))
    assert "o" in served(scheduler, 4)


def test_a_preempted_sequence_is_not_charged_for_its_prompt_again():
    scheduler = make_scheduler(num_slots=2, num_pages=7)
    first = scheduler.add(make_request("a", 8, 8, flow="f"))
    preempted = scheduler.add(make_request("b", 8, 8, flow="g"))
    while scheduler.num_preemptions == 0:
        step(scheduler)
    of_same, of_other = (scheduler.add(make_request(n, 8, 1, flow=flow)) for n, flow in (("c", "g"), ("d", "f")))
    num_sampled = len(preempted.output_ids)
    assert 4 < num_sampled < 8  # 8 prompt tokens more would put its flow behind the other one
    while not first.is_finished:
        step(scheduler)
    scheduler.plan()
    assert (preempted.is_running, of_same.is_running, of_other.is_running) == (True, True, False)
