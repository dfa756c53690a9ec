"""The numbers of vectors in a response: how many dimensions, and how they are written."""

import base64
from typing import Any

import numpy as np

from service.api.served import VectorFacts
from service.encoder.request import Vectors
from service.errors import InvalidParameter

# Writing this number of numbers takes less time than passing them to a thread.
FEW_NUMBERS = 4096


def size_of(wanted: int | None, vectors: VectorFacts) -> int:
    """Return the dimensions to return.

    Raises:
        InvalidParameter: the model has fewer, or was not trained for it.
    """
    if wanted is None or wanted == vectors.size:
        return vectors.size
    if vectors.matryoshka_sizes is None:
        message = (
            f"Invalid 'dimensions': the model was not trained to be cut (its config.json has no "
            f"matryoshka_dimensions), so its vectors have {vectors.size} dimensions."
        )
        raise InvalidParameter(message, param="dimensions")
    if wanted > vectors.size or (vectors.matryoshka_sizes and wanted not in vectors.matryoshka_sizes):
        sizes = ", ".join(map(str, vectors.matryoshka_sizes)) or f"1 to {vectors.size}"
        message = (
            f"Invalid 'dimensions': {wanted} is not one of the dimensions that the model was trained for: {sizes}."
        )
        raise InvalidParameter(message, param="dimensions")
    return wanted


def cut(vectors: Vectors, size: int, *, is_normalized: bool) -> Vectors:
    """Return the first dimensions of each vector, with length 1 again if the whole has it."""
    if size == vectors.shape[1]:
        return vectors
    shorter = vectors[:, :size]
    return shorter / np.linalg.norm(shorter, axis=1, keepdims=True) if is_normalized else shorter


def written(numbers: np.ndarray, encoding_format: str) -> Any:
    """Return numbers as lists, or as base64 of their bytes in little-endian float32."""
    if encoding_format == "float":
        return numbers.tolist()
    return base64.b64encode(numbers.astype("<f4").tobytes()).decode()
