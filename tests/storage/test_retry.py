"""A retry budget bounds attempts, waits and time; the watchdog bounds slowness."""

import threading
from collections.abc import Sequence

import pytest

from service.errors import TransferFailed
from service.storage.retry import RetryBudget, ThroughputWatchdog, TransientFault
from tests.stored import quick_limits

URI, NAME = "gs://bucket/model", "model.safetensors"


class Attempts:
    """Runs a read that fails with each of some faults in turn, and records the waits between its attempts."""

    def __init__(self, budget: RetryBudget, faults: Sequence[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits_s: list[float] = []
        self.num_attempts = 0
        monkeypatch.setattr(budget, "sleep", self.waits_s.append)
        self._budget, self._faults = budget, list(faults)

    def run(self) -> None:
        for attempt in self._budget.attempts(URI, NAME):
            with attempt:
                self.num_attempts += 1
                if self._faults:
                    raise self._faults.pop(0)


def test_faults_that_pass_are_retried_with_bounded_waits(monkeypatch: pytest.MonkeyPatch):
    attempts = Attempts(RetryBudget(quick_limits()), [TransientFault("reset")] * 3, monkeypatch)
    attempts.run()
    assert attempts.num_attempts == 4
    assert len(attempts.waits_s) == 3
    assert all(0 <= wait_s <= quick_limits().max_wait_s for wait_s in attempts.waits_s)


def test_faults_that_stay_are_given_up_with_the_last_reason(monkeypatch: pytest.MonkeyPatch):
    faults = [TransientFault(f"fault {number}") for number in range(9)]
    attempts = Attempts(RetryBudget(quick_limits(max_attempts=3)), faults, monkeypatch)
    with pytest.raises(TransferFailed, match="fault 2; gave up at attempt 3") as caught:
        attempts.run()
    assert attempts.num_attempts == 3
    assert (caught.value.name, caught.value.__cause__) == (NAME, faults[2])


@pytest.mark.parametrize("is_outage", [True, False])
def test_a_server_that_asks_for_a_retry_is_asked_for_as_long_as_an_outage_may_last(monkeypatch, is_outage):
    faults = [TransientFault("HTTP 503", is_outage=is_outage) for _ in range(50)]
    attempts = Attempts(RetryBudget(quick_limits(max_attempts=3, outage_s=60.0)), faults, monkeypatch)
    if is_outage:
        attempts.run()
        assert attempts.num_attempts == 51
    else:
        with pytest.raises(TransferFailed, match="gave up at attempt 3"):
            attempts.run()


def test_the_servers_retry_after_is_the_shortest_wait(monkeypatch: pytest.MonkeyPatch):
    attempts = Attempts(RetryBudget(quick_limits()), [TransientFault("HTTP 429", 7.5)], monkeypatch)
    attempts.run()
    assert attempts.waits_s == [7.5]


def test_a_retry_after_beyond_the_deadline_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    attempts = Attempts(RetryBudget(quick_limits(deadline_s=60.0)), [TransientFault("HTTP 429", 61.0)], monkeypatch)
    with pytest.raises(TransferFailed, match="HTTP 429; gave up at attempt 1"):
        attempts.run()
    assert not attempts.waits_s


def test_other_failures_are_raised_at_once(monkeypatch: pytest.MonkeyPatch):
    attempts = Attempts(RetryBudget(quick_limits()), [ValueError("not transient")], monkeypatch)
    with pytest.raises(ValueError, match="not transient"):
        attempts.run()
    assert attempts.num_attempts == 1


def test_a_cancelled_budget_ends_attempts_and_checks(monkeypatch: pytest.MonkeyPatch):
    by_caller = threading.Event()
    cancelled, ended_by_caller = RetryBudget(quick_limits()), RetryBudget(quick_limits(), by_caller)
    cancelled.cancel()
    by_caller.set()
    for budget in (cancelled, ended_by_caller):
        with pytest.raises(TransferFailed, match="was stopped"):
            budget.check(URI, NAME)
        attempts = Attempts(budget, [TransientFault("reset")] * 2, monkeypatch)
        with pytest.raises(TransferFailed, match="was stopped"):
            attempts.run()
        assert attempts.num_attempts == 1


def test_a_deadline_that_has_passed_names_its_setting():
    budget = RetryBudget(quick_limits(deadline_s=0.0))
    assert budget.remaining_s == 0
    with pytest.raises(TransferFailed, match="PULL_TIMEOUT = 0 s"):
        budget.check(URI, NAME)


def test_the_watchdog_faults_a_slow_window_and_no_fast_one():
    watchdog = ThroughputWatchdog(quick_limits(slow_window_s=0.0, min_bytes_per_s=1))
    watchdog.add(1_000_000)
    with pytest.raises(TransientFault, match="bytes per second arrived"):
        watchdog.add(0)


def test_the_watchdog_waits_for_the_end_of_its_window():
    ThroughputWatchdog(quick_limits(slow_window_s=600.0, min_bytes_per_s=1_000_000)).add(0)
