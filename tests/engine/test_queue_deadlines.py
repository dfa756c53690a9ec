"""Deadlines of waiting requests: which are over, and how many are kept of requests that have ended."""

from service.engine.loop import MAX_SURPLUS, MIN_KEPT, QueueDeadlines
from service.engine.request import QueueDeadline, Request


def request(number):
    return Request(str(number), (1,), 1, queue_deadline=QueueDeadline(end_s=float(number), limit_s=5.0))


def test_what_is_over_comes_in_the_order_of_the_deadlines():
    deadlines, open_ids = QueueDeadlines(), {"1", "2", "3"}
    for number in (3, 1, 2):
        deadlines.add(request(number), open_ids)
    assert list(deadlines.pop_expired(0.5)) == []
    assert [request_id for request_id, _ in deadlines.pop_expired(2.0)] == ["1", "2"]
    assert len(deadlines) == 1


def test_deadlines_of_requests_that_have_ended_are_dropped_and_no_others():
    deadlines, open_ids = QueueDeadlines(), {str(number) for number in range(0, 1000, 5)}
    for number in range(1000):
        deadlines.add(request(number), open_ids)
        assert len(deadlines) <= max(MIN_KEPT, MAX_SURPLUS * len(open_ids))
    assert {request_id for request_id, _ in deadlines.pop_expired(1000.0)} >= open_ids


def test_a_request_without_a_deadline_is_not_kept():
    deadlines = QueueDeadlines()
    deadlines.add(Request("a", (1,), 1), {"a"})
    assert len(deadlines) == 0
