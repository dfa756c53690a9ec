"""Batches as encoders usually take them: texts of similar length together, padded to the longest of the batch.

It runs in the environments of peers, also on Python 3.11, and imports only the standard library and numpy.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

MAX_BATCH = 32  # texts; larger batches are no faster on a CPU
WINDOW_S = 0.010

# From token ids and mask, each [text, token], to vectors, [text, vector].
Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]


def encode_sorted(forward: Forward, texts: list[list[int]], num_clients: int) -> dict[str, Any]:
    """Encode all texts in the best order: as if every text were known from the start."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    size = min(num_clients, MAX_BATCH)
    vectors = {}
    for first in range(0, len(order), size):
        batch = order[first : first + size]
        vectors.update(zip(batch, forward(*_padded([texts[index] for index in batch])), strict=True))
    return {"vector": vectors[0].tolist()}


def encode_in_windows(forward: Forward, texts: list[list[int]], num_clients: int) -> dict[str, Any]:
    """Wait for a fixed time after the first text of a batch, then encode what has come, in the order of arrival.

    Every client sends its next text as soon as it is answered.
    """
    left = deque(enumerate(texts))
    waiting = [left.popleft() for _ in range(min(num_clients, len(left)))]
    vectors = {}
    while waiting:
        time.sleep(WINDOW_S)
        batch, waiting = waiting[:MAX_BATCH], waiting[MAX_BATCH:]
        rows = forward(*_padded([text for _, text in batch]))
        vectors.update(zip([number for number, _ in batch], rows, strict=True))
        waiting += [left.popleft() for _ in range(min(len(batch), len(left)))]
    return {"vector": vectors[0].tolist()}


def _padded(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    longest = max(map(len, texts))
    token_ids = np.array([text + [0] * (longest - len(text)) for text in texts], np.int64)
    mask = np.array([[1] * len(text) + [0] * (longest - len(text)) for text in texts], np.int64)
    return token_ids, mask
