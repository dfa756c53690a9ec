"""Results as text for a terminal or a CI log, one line per check, and as a JSON document."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from service.smoke.failures import Reply

LABELS = {"passed": "ok", "failed": "FAIL", "skipped": "skip"}
INDENT = " " * 21
WIDTH = 120


@dataclass(frozen=True)
class Finding:
    """The result of a check that passed."""

    detail: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # numbers as plain JSON


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    detail: str
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    request: str | None = None  # of a failed check
    http_status: int | None = None
    request_id: str | None = None
    answer: str | None = None

    @classmethod
    def failed(cls, name: str, message: str, seconds: float, reply: Reply | None) -> "Outcome":
        if reply is None:
            return cls(name, "failed", message, seconds)
        return cls(
            name,
            "failed",
            message,
            seconds,
            request=reply.request,
            http_status=reply.status,
            request_id=reply.request_id,
            answer=reply.excerpt or None,
        )

    def text(self) -> str:
        """Format the outcome; if it failed, with the request and an excerpt of the answer below."""
        lines = [f"  {LABELS[self.status]:<4}  {self.name:<11}  {self.detail}"]
        if self.request is not None:
            request_id = "" if self.request_id is None else f", request id {self.request_id}"
            lines.append(f"{INDENT}{self.request} answered {self.http_status}{request_id}")
        if self.answer is not None:
            lines.append(
                textwrap.indent(textwrap.fill(self.answer, WIDTH - len(INDENT), break_on_hyphens=False), INDENT)
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class SmokeReport:
    """The outcomes of one run."""

    url: str
    model: str | None
    outcomes: Sequence[Outcome]
    seconds: float

    @property
    def is_green(self) -> bool:
        """Whether the service can take traffic."""
        return all(outcome.status != "failed" for outcome in self.outcomes)

    def summary(self) -> str:
        counts = {status: sum(outcome.status == status for outcome in self.outcomes) for status in LABELS}
        parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        return f"{'green' if self.is_green else 'RED'}: {parts}, in {self.seconds:.1f} s"

    def as_json(self) -> dict[str, Any]:
        checks = [
            {name: value for name, value in asdict(outcome).items() if value not in (None, {})}
            | {"seconds": round(outcome.seconds, 3)}
            for outcome in self.outcomes
        ]
        verdict = {"url": self.url, "model": self.model, "is_green": self.is_green}
        return verdict | {"seconds": round(self.seconds, 3), "checks": checks}
