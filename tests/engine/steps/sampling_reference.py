"""The sampler once more, one row at a time, in numpy and by sorting: slow, plain, and the measure of the fast one."""

import numpy as np

from service.engine.request import Request, Sampling


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    return shifted - np.log(np.exp(shifted).sum())


def adjusted(logits: np.ndarray, request: Request, output_ids: list[int], allowed: np.ndarray | None) -> np.ndarray:
    """Return the scores after all that changes scores."""
    sampling = request.sampling
    scores = logits.astype(np.float64).copy()
    if allowed is not None:
        scores[~allowed] = -np.inf
    if len(output_ids) < sampling.min_tokens:
        scores[sorted(request.stop_ids)] = -np.inf
    for token_id, bias in sampling.logit_bias.items():
        scores[token_id] += bias
    for token_id in set(request.prompt_ids) | set(output_ids):
        score = scores[token_id]
        scores[token_id] = score / sampling.repetition_penalty if score > 0 else score * sampling.repetition_penalty
    for token_id in set(output_ids):
        scores[token_id] -= sampling.frequency_penalty * output_ids.count(token_id) + sampling.presence_penalty
    first = len(scores) if sampling.group_from is None else sampling.group_from
    group, others = np.exp(scores[first:]).sum(), np.exp(scores[:first]).max(initial=0)
    if group > others:
        scores[:first] = -np.inf
    return scores


def distribution(scores: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Return the probability with which each token is drawn."""
    if sampling.temperature == 0:
        return np.eye(len(scores))[np.argmax(scores)]
    probabilities = np.exp(log_softmax(scores / sampling.temperature))
    kept = probabilities >= sampling.min_p * probabilities.max()
    if sampling.top_k:
        kth = np.sort(probabilities)[::-1][min(sampling.top_k, len(scores)) - 1]
        kept &= probabilities >= kth
    probabilities = np.where(kept, probabilities, 0)
    probabilities /= probabilities.sum()
    if sampling.top_p < 1:
        order = np.argsort(-probabilities, kind="stable")
        num_kept = int(np.searchsorted(np.cumsum(probabilities[order]), sampling.top_p)) + 1
        probabilities = np.where(probabilities >= probabilities[order[min(num_kept, len(order)) - 1]], probabilities, 0)
    return probabilities / probabilities.sum()
