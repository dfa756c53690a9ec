"""The grid of padded shapes that are compiled, and the smallest one that fits.

A grid is the product of a few sizes along named dimensions; it does not know what the dimensions mean.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

Bucket = Mapping[str, int]  # dimension to size


def geometric_sizes(smallest: int, largest: int, *, factor: int) -> tuple[int, ...]:
    """Return sizes from `smallest`, each `factor` times the one before, and always `largest` as the last."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= factor
    return (*sizes, largest)


@dataclass(frozen=True)
class BucketGrid:
    """All buckets of one kind of step."""

    sizes: Mapping[str, tuple[int, ...]]  # dimension to its sizes, ascending

    def __iter__(self) -> Iterator[Bucket]:
        for combination in product(*self.sizes.values()):
            yield dict(zip(self.sizes, combination, strict=True))

    def smallest(self, **needed: int) -> Bucket:
        """Return the smallest bucket that holds the needed size along every dimension.

        Raises:
            ValueError: the need is larger than the largest bucket, which is a fault of the caller's bounds.
        """
        bucket = {}
        for dimension, sizes in self.sizes.items():
            index = bisect_left(sizes, needed[dimension])
            if index == len(sizes):
                raise ValueError(f"{dimension} = {needed[dimension]} is over the largest bucket, {sizes[-1]}")
            bucket[dimension] = sizes[index]
        return bucket


def bucket_name(kind: str, bucket: Bucket) -> str:
    """Name a bucket for logs and files: `decode-seqs16-pages64`."""
    return "-".join([kind, *(f"{dimension.removeprefix('num_')}{size}" for dimension, size in bucket.items())])
