"""Copies, control flow and host transfers in the text of an optimized HLO module.

Source: https://openxla.org/xla/operation_semantics; a shape is `bf16[64,4096]{1,0:T(8,128)}`.
"""

import math
import re
from collections import Counter

BITS = re.compile(r"[a-z]+(\d+)")  # of an element, as in s8, bf16 and f8e4m3fn; `pred` has 8
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (.*?) ([a-z][a-z0-9-]*)\(", re.MULTILINE)
ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
CALLED = re.compile(r"(?:to_apply|body|true_computation|false_computation)=%?([\w.-]+)")
CALLS = ("call", "while", "conditional")
NO_KERNELS = ("parameter", "tuple", "get-tuple-element", "constant", "bitcast")
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


def count_kernels(text: str) -> int:
    """How many kernels a program launches on a GPU, where each loop counts as one turn."""
    computations = {name: body for _, name, body in COMPUTATION.findall(text)}
    [entry] = (name for is_entry, name, _ in COMPUTATION.findall(text) if is_entry)

    def count(name: str) -> int:
        total = 0
        for line in computations[name].splitlines():
            for _, operation in INSTRUCTION.findall(line):
                total += operation not in (*NO_KERNELS, *CALLS)
                if operation in CALLS:
                    total += sum(map(count, CALLED.findall(line)))
        return total

    return count(entry)


def copies_from(text: str, smallest_bytes: int, num_elements_of_others: int = 0) -> list[str]:
    """The copies and transposes of arrays that are at least so large, but not of those with a number of elements."""
    return [
        f"{operation} {shape}"
        for shape, operation in INSTRUCTION.findall(text)
        if operation in COPIES
        and num_bytes(shape) >= smallest_bytes
        and {num_elements(sizes) for _, sizes in ARRAY.findall(shape)} != {num_elements_of_others}
    ]


def host_transfers(text: str) -> list[str]:
    """What a program exchanges with the host while it runs."""
    return [
        f"{operation} {shape}"
        for shape, operation in INSTRUCTION.findall(text)
        if operation in HOST_TRANSFERS or HOST_MEMORY in shape
    ]


def num_elements(sizes: str) -> int:
    """The number of elements of an array, from its sizes as HLO writes them."""
    return math.prod(int(size) for size in sizes.split(",") if size)


def _array_bytes(dtype: str, sizes: str) -> int:
    found = BITS.match(dtype)
    bits = int(found[1]) if found else 8 * (dtype == "pred")
    return num_elements(sizes) * bits // 8
