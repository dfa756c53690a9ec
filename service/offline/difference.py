"""Metrics of the difference between two models' predictions for the same text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass
class Difference:
    """Sums over the positions of a text, in natural logarithms."""

    num_tokens: int = 0  # predicted tokens
    first_nll: float = 0.0  # negative log-likelihood of the text
    second_nll: float = 0.0
    kl: float = 0.0  # Kullback-Leibler divergence of the second distribution from the first
    largest_kl: float = 0.0  # of one position
    num_same: int = 0  # positions with the same most likely token
    largest_logit_difference: float = 0.0

    def add(
        self,
        first: Float[np.ndarray, "token vocab"],
        second: Float[np.ndarray, "token vocab"],
        targets: Sequence[int],
    ) -> None:
        """Add positions, given the logits of both models and the next tokens of the text."""
        if not targets:
            return
        logs = [_log_softmax(logits) for logits in (first, second)]
        kl = np.sum(np.exp(logs[0]) * (logs[0] - logs[1]), axis=-1)
        rows = np.arange(len(targets))
        self.num_tokens += len(targets)
        self.first_nll -= float(logs[0][rows, targets].sum())
        self.second_nll -= float(logs[1][rows, targets].sum())
        self.kl += float(kl.sum())
        self.largest_kl = max(self.largest_kl, float(kl.max()))
        self.num_same += int((first.argmax(axis=-1) == second.argmax(axis=-1)).sum())
        self.largest_logit_difference = max(self.largest_logit_difference, float(np.abs(first - second).max()))

    def metrics(self) -> dict[str, float]:
        """Return the metrics rounded to six digits."""
        perplexities = [math.exp(nll / self.num_tokens) for nll in (self.first_nll, self.second_nll)]
        metrics = {
            "first_perplexity": perplexities[0],
            "second_perplexity": perplexities[1],
            "perplexity_ratio": perplexities[1] / perplexities[0],
            "mean_kl": self.kl / self.num_tokens,
            "largest_kl": self.largest_kl,
            "same_greedy_tokens": self.num_same / self.num_tokens,
            "largest_logit_difference": self.largest_logit_difference,
        }
        return {"tokens": self.num_tokens, **{name: float(f"{value:.6g}") for name, value in metrics.items()}}


def _log_softmax(logits: Float[np.ndarray, "token vocab"]) -> Float[np.ndarray, "token vocab"]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
