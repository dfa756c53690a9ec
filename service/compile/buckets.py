"""The padded shapes that are compiled, and the smallest one that fits; independent of what the dimensions mean."""

import math
from collections.abc import Iterator
from dataclasses import dataclass


def geometric_sizes(smallest: int, largest: int, *, factor: int) -> tuple[int, ...]:
    """Return sizes from `smallest`, each `factor` times the one before, and always `largest` as the last."""
    sizes = []
    size = smallest
    while size < largest:
        sizes.append(size)
        size *= factor
    return (*sizes, largest)


@dataclass(frozen=True)
class BucketGrid[Bucket: tuple[int, ...]]:
    """All buckets of one kind of step, as sizes along the same dimensions."""

    buckets: tuple[Bucket, ...]

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self.buckets)

    def smallest(self, needed: Bucket) -> Bucket:
        """Return the bucket that holds the needed size along every dimension with the least padding in all.

        Raises:
            ValueError: no bucket holds it, which is a fault of the caller's bounds.
        """
        fitting = [bucket for bucket in self.buckets if all(map(int.__ge__, bucket, needed))]
        if not fitting:
            raise ValueError(f"no bucket holds {needed}")
        return min(fitting, key=math.prod)
