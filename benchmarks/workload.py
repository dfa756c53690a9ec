"""What is asked of every contender, the same for each: prompts of random token ids, and how many tokens to generate."""

import itertools
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Wave:
    """Requests that are sent at the same moment; the next wave begins when the last of them is answered."""

    name: str
    num_requests: int
    prompt_tokens: int  # of each request
    output_tokens: int  # that each must generate, whatever they are

    def prompts(self, word_ids: list[int], seed: int) -> list[list[int]]:
        """Draw the prompts; no two have a beginning in common, so no cache of prefixes helps."""
        random = np.random.default_rng([seed, self.num_requests, self.prompt_tokens])
        return random.choice(word_ids, (self.num_requests, self.prompt_tokens)).tolist()

    def as_json(self) -> dict[str, Any]:
        """Return it for the results file."""
        return asdict(self)


@dataclass
class Outcome:
    """What one wave, or any other set of requests, brought; times count from its beginning."""

    seconds: float  # until the last token was there
    num_tokens: int  # that were generated
    first_token_s: list[float] = field(default_factory=list)  # of each request, from its own sending
    gap_s: list[float] = field(default_factory=list)  # between one token and the next of the same request
    full_s: float | None = None  # the time during which every request was between its first and its last token
    full_tokens: int = 0  # generated in that time
    token_ids: list[list[int]] = field(default_factory=list)  # where the contender tells them

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens over the whole time, the reading of the prompts included."""
        return self.num_tokens / self.seconds

    @staticmethod
    def of_times(started_s: float, sent_s: list[float], token_s: list[list[float]]) -> "Outcome":
        """Compute it from the moment at which each token of each request arrived."""
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
    """Return the waves by which contenders are compared, and one long prompt for the speed of prefill."""
    if is_quick:
        return [Wave("c1", 1, 16, 8), Wave("c8", 8, 16, 8), Wave("prefill", 1, 64, 1)]
    return [Wave("c1", 1, 128, 64), Wave("c8", 8, 128, 64), Wave("c32", 32, 128, 64), Wave("prefill", 1, 512, 1)]
