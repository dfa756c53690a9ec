"""Copies, control flow and host transfers in the text of an optimized HLO module.

Source: https://openxla.org/xla/operation_semantics; a shape is `bf16[64,4096]{1,0:T(8,128)}`.
"""

import math
import re
from collections import Counter

ITEM_BITS = {"pred": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64}
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (.*?) ([a-z][a-z0-9-]*)\(", re.MULTILINE)
ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
# Those that move or repeat data and compute nothing; the asynchronous ones also prefetch weights into on-chip memory.
COPIES = ("copy", "transpose")
HOST_TRANSFERS = ("infeed", "outfeed", "send", "recv", "send-done", "recv-done")
HOST_MEMORY = "S(5)"  # the memory space of the host, in a layout


def num_bytes(shape: str) -> int:
    """The size of an array, or of a tuple's largest one."""
    return max((_array_bytes(dtype, sizes) for dtype, sizes in ARRAY.findall(shape)), default=0)


def count_instructions(text: str) -> Counter[str]:
    """How often each operation occurs, in all computations."""
    return Counter(operation for _, operation in INSTRUCTION.findall(text))


def copies_from(text: str, smallest_bytes: int) -> list[str]:
    """The copies and transposes of arrays that are at least so large."""
    return [
        f"{operation} {shape}"
        for shape, operation in INSTRUCTION.findall(text)
        if operation in COPIES and num_bytes(shape) >= smallest_bytes
    ]


def host_transfers(text: str) -> list[str]:
    """What a program exchanges with the host while it runs."""
    return [
        f"{operation} {shape}"
        for shape, operation in INSTRUCTION.findall(text)
        if operation in HOST_TRANSFERS or HOST_MEMORY in shape
    ]


def _array_bytes(dtype: str, sizes: str) -> int:
    bits = ITEM_BITS.get(dtype) or int(re.sub(r"\D", "", dtype) or 0)
    return math.prod(int(size) for size in sizes.split(",") if size) * bits // 8
