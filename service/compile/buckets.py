"""The padded shapes that are compiled, and the smallest one that fits; does not know what the dimensions mean."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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

    buckets: tuple[Bucket, ...]

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self.buckets)

    def smallest(self, **needed: int) -> Bucket:
        """Return the bucket that holds the needed size along every dimension with the least padding in all.

        Raises:
            ValueError: no bucket holds it, which is a fault of the caller's bounds.
        """
        fitting = [b for b in self.buckets if all(b[dimension] >= size for dimension, size in needed.items())]
        if not fitting:
            raise ValueError(f"no bucket holds {needed}")
        return min(fitting, key=lambda bucket: math.prod(bucket.values()))


def bucket_name(kind: str, bucket: Bucket) -> str:
    """Name a bucket for logs and files: `decode-seqs16-tokens1-pages64`."""
    return "-".join([kind, *(f"{dimension.removeprefix('num_')}{size}" for dimension, size in bucket.items())])
