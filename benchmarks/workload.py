"""The workload of every contender: prompts of random token ids, and a number of tokens to generate."""

import itertools
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Wave:
    """Requests that are sent at the same moment; the next wave starts after the last of them is answered."""

    name: str
    num_requests: int
    prompt_tokens: int  # per request
    output_tokens: int  # per request, regardless of end-of-text tokens

    def prompts(self, word_ids: list[int], seed: int) -> list[list[int]]:
        """Return random prompts without a common prefix, so that a prefix cache does not help."""
        random = np.random.default_rng([seed, self.num_requests, self.prompt_tokens])
        return random.choice(word_ids, (self.num_requests, self.prompt_tokens)).tolist()

    def as_json(self) -> dict[str, Any]:
        """Return the wave as JSON for the results file."""
        return asdict(self)


@dataclass
class Outcome:
    """The outcome of a wave or of any other set of requests; times are seconds from its start."""

    seconds: float  # until the last token arrived
    num_tokens: int  # generated
    first_token_s: list[float] = field(default_factory=list)  # per request, from the moment it was sent
    gap_s: list[float] = field(default_factory=list)  # between consecutive tokens of a request
    full_s: float | None = None  # seconds in which every request was between its first and its last token
    full_tokens: int = 0  # generated in `full_s`
    token_ids: list[list[int]] = field(default_factory=list)  # if the contender returns them

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second over the whole time, prefill included."""
        return self.num_tokens / self.seconds

    @staticmethod
    def of_times(started_s: float, sent_s: list[float], token_s: list[list[float]]) -> "Outcome":
        """Compute the outcome from the arrival of each token of each request."""
        full_from = max(times[0] for times in token_s)
        full_to = min(times[-1] for times in token_s)
        return Outcome(
            seconds=max(times[-1] for times in token_s) - started_s,
            num_tokens=sum(len(times) for times in token_s),
            first_token_s=[times[0] - sent for sent, times in zip(sent_s, token_s, strict=True)],
            gap_s=[b - a for times in token_s for a, b in itertools.pairwise(times)],
            full_s=max(full_to - full_from, 0.0),
            full_tokens=sum(full_from < time <= full_to for times in token_s for time in times),
        )


def throughput_waves(*, is_quick: bool) -> list[Wave]:
    """Return the waves that compare the contenders, and one long prompt for the speed of prefill."""
    if is_quick:
        return [Wave("c1", 1, 16, 8), Wave("c8", 8, 16, 8), Wave("prefill", 1, 64, 1)]
    return [Wave("c1", 1, 128, 64), Wave("c8", 8, 128, 64), Wave("c32", 32, 128, 64), Wave("prefill", 1, 512, 1)]
