"""Execution of the checks in order; a check is skipped if a check that it needs has failed."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from service.smoke.client import Client
from service.smoke.failures import CheckFailed, NotApplicable
from service.smoke.report import Finding, Outcome, SmokeReport


class Kind(Enum):
    """What a model makes."""

    TEXT = auto()
    VECTORS = auto()
    TRANSCRIPTS = auto()


@dataclass
class Session:
    """The options and the state of one run."""

    client: Client
    ready_timeout_s: float
    num_requests: int  # for the latencies
    waits_for_port: bool = True  # whether connections may be refused for as long
    requested_model: str | None = None
    report: Callable[[str], None] = lambda _: None  # shows progress
    model: str | None = None  # set by the check `models`
    adapter: str | None = None  # of the model, set by the check `models` if one is served
    takes_messages: bool = True  # unset by the check `chat` if the model has no chat template
    sees: bool = False  # whether the model takes images, set by the check `models`
    capabilities: frozenset[str] | None = None  # of the model, if /v1/models lists them
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def model_name(self) -> str:
        return self.model or self.requested_model or ""

    @property
    def kind(self) -> Kind:
        """What the model makes; text is assumed if the service does not list capabilities."""
        if self.capabilities is None or "completions" in self.capabilities:
            return Kind.TEXT
        return Kind.TRANSCRIPTS if "audio/transcriptions" in self.capabilities else Kind.VECTORS


@dataclass(frozen=True)
class Check:
    """A named check and the checks that it needs."""

    name: str
    run: Callable[[Session], Finding]
    needs: frozenset[str] = frozenset({"ready"})
    kind: Kind | None = None  # of the models that it applies to; None for all
    is_of_images: bool = False  # whether it applies only to models that take images

    def applies(self, session: Session) -> bool:
        return self.kind in (None, session.kind) and (session.sees or not self.is_of_images)


def run_checks(session: Session, checks: tuple[Check, ...]) -> Iterator[Outcome]:
    """Run the checks that apply to the model, and yield each outcome as soon as it is known."""
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


def report_of(session: Session, seconds: float) -> SmokeReport:
    """Return the report of a finished run."""
    return SmokeReport(session.client.url, session.model_name or None, tuple(session.outcomes), seconds)


def _run(session: Session, check: Check) -> Outcome:
    began_s = time.monotonic()
    try:
        finding = check.run(session)
    except CheckFailed as error:
        return Outcome.failed(check.name, error.message, time.monotonic() - began_s, error.reply)
    except NotApplicable as error:
        return Outcome(check.name, "skipped", str(error), time.monotonic() - began_s)
    return Outcome(check.name, "passed", finding.detail, time.monotonic() - began_s, finding.facts)
