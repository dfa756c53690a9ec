"""`levserve` on a CPU whose attention kernel is replaced by one of KERNEL_DOUBLE, and is checked as an accelerator's.

python -m tests.start.service_with_kernel serve
"""

import os
import sys
from dataclasses import dataclass

from service.cli import main
from service.kernels import blocks, native_pages
from service.kernels.reference import PagedReference
from service.start import executables


@dataclass(frozen=True)
class Wrong(PagedReference):
    """A kernel that attends to the last token alone."""

    def attend(self, query, new_keys, new_values, cache, paging, **options):
        attended, cache = super().attend(query, new_keys, new_values, cache, paging, **options)
        return attended * 0 + new_values[:, :, :, None], cache


@dataclass(frozen=True)
class Failing(PagedReference):
    """A kernel that does not compile."""

    def attend(self, *operands, **options):
        raise NotImplementedError("no such instruction")


@dataclass(frozen=True)
class Right(PagedReference):
    """A kernel that is as good as the reference."""


DOUBLES = {"wrong": Wrong, "failing": Failing, "right": Right}

if __name__ == "__main__":
    double = DOUBLES[os.environ["KERNEL_DOUBLE"]]
    native_pages.NativePagedAttention = blocks.BlockAttention = double
    executables.CHECKED_PLATFORMS = ("cpu",)
    sys.exit(main())
