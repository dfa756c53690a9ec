"""A run of the checks, in order; a check is skipped if one that it needs has failed."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from service.smoke.client import Client
from service.smoke.failures import CheckFailed, NotApplicable
from service.smoke.report import Finding, Outcome, Report


@dataclass
class Session:
    """One run against one service: its options, and what the checks have learned so far."""

    client: Client
    ready_timeout_s: float
    num_requests: int  # for the latencies
    wanted_model: str | None = None
    report: Callable[[str], None] = lambda _: None  # shows progress to a person
    model: str | None = None  # set by the check `models`
    takes_messages: bool = True  # unset by the check `chat` if the model has no chat template
    capabilities: frozenset[str] | None = None  # of the model, if /v1/models tells them
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def model_name(self) -> str:
        """The model to send requests to."""
        return self.model or self.wanted_model or ""

    @property
    def generates(self) -> bool:
        """Whether the model generates text; a service that does not tell what its model can is taken to."""
        return self.capabilities is None or "completions" in self.capabilities


@dataclass(frozen=True)
class Check:
    """A named check and the checks that it needs."""

    name: str
    run: Callable[[Session], Finding]
    needs: frozenset[str] = frozenset({"ready"})
    of_generation: bool | None = None  # of models that generate text alone, or of those that do not; None: of all

    def applies(self, session: Session) -> bool:
        """Whether the check is one for the service's model."""
        return self.of_generation in (None, session.generates)


def run_checks(session: Session, checks: tuple[Check, ...]) -> Iterator[Outcome]:
    """Run the checks of the service's kind of model, and yield each outcome as it becomes known."""
    failed: set[str] = set()
    for check in checks:
        if not check.applies(session):
            continue
        missing = sorted(check.needs & failed)
        if missing:
            outcome = Outcome(check.name, "skipped", f"needs {', '.join(missing)}", 0.0)
        else:
            outcome = _run(session, check)
        if outcome.status == "failed" or missing:
            failed.add(check.name)
        session.outcomes.append(outcome)
        yield outcome


def report_of(session: Session, seconds: float) -> Report:
    """Return the report of a finished run."""
    return Report(session.client.url, session.model_name or None, tuple(session.outcomes), seconds)


def _run(session: Session, check: Check) -> Outcome:
    began_s = time.monotonic()
    try:
        finding = check.run(session)
    except CheckFailed as error:
        return Outcome.failed(check.name, error.message, time.monotonic() - began_s, error.reply)
    except NotApplicable as error:
        return Outcome(check.name, "skipped", str(error), time.monotonic() - began_s)
    return Outcome(check.name, "passed", finding.detail, time.monotonic() - began_s, finding.facts)
