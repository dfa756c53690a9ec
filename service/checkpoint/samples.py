"""Whether two tensors of files are equal: small ones are compared whole, and of large ones samples."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from service.storage.objects import read_range
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget
from service.weights.safetensors import TensorEntry

WHOLE_BYTES = 8 * 1024 * 1024  # tensors up to this size are compared whole
NUM_SAMPLES, SAMPLE_BYTES = 32, 64 * 1024  # of larger ones, evenly spread

type Place = tuple[OpenFile, TensorEntry]


def are_equal(first: Place, second: Place, budget: RetryBudget) -> bool:
    """Return whether two tensors are equal; of large ones, whether samples of them are."""
    (one, left), (other, right) = first, second
    if replace(left, file="", begin=0, end=0) != replace(right, file="", begin=0, end=0):
        return False
    if one is other and left == right:
        return True
    size = left.end - left.begin
    pieces = [(0, size)]
    if size > WHOLE_BYTES:
        last = size - SAMPLE_BYTES
        pieces = [(last * number // (NUM_SAMPLES - 1), SAMPLE_BYTES) for number in range(NUM_SAMPLES)]

    def is_equal(piece: tuple[int, int]) -> bool:
        start, length = piece
        return read_range(one.source, one.info, left.begin + start, length, budget) == read_range(
            other.source, other.info, right.begin + start, length, budget
        )

    with ThreadPoolExecutor(budget.limits.num_workers, thread_name_prefix="samples") as pool:
        return all(pool.map(is_equal, pieces))
