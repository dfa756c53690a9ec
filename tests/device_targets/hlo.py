"""Copies, control flow and host transfers in the text of an optimized HLO module.

Source: https://openxla.org/xla/operation_semantics; a shape is `bf16[64,4096]{1,0:T(8,128)}`.
"""

import math
import re
from collections import Counter
from typing import NamedTuple

BITS = re.compile(r"[a-z]+(\d+)")  # of an element, as in s8, bf16 and f8e4m3fn; `pred` has 8
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (.*?) ([a-z][a-z0-9-]*)\(", re.MULTILINE)
ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \([^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
CALLED = re.compile(r"(?:to_apply|body|true_computation|false_computation)=%?([\w.-]+)")
# An instruction with its name; `%` may be missing.
NAMED = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\((.*)$", re.MULTILINE)
NAME = re.compile(r"%([\w.-]+)")
FUSED = re.compile(r"kind=\w+, calls=%?([\w.-]+)")
CALLS = ("call", "while", "conditional")
NO_KERNELS = ("parameter", "tuple", "get-tuple-element", "constant", "bitcast")
# Those that move or repeat data and compute nothing; the asynchronous ones also prefetch weights into on-chip memory.
COPIES = ("copy", "transpose")
MOVES = (*COPIES, "bitcast", "convert", "copy-done", "copy-start", "get-tuple-element", "reshape", "slice")
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


def copies_of_arguments(text: str, smallest_bytes: int) -> list[str]:
    """The copies and transposes of a program's arguments, weights and caches, that are at least so large."""
    program = Dataflow(text)
    return [
        f"{one.operation} {one.shape}"
        for one in program.instructions
        if one.operation in COPIES and num_bytes(one.shape) >= smallest_bytes and program.is_of_argument(one)
    ]


class Instruction(NamedTuple):
    """An instruction of a computation."""

    computation: str
    name: str
    shape: str
    operation: str
    operands: tuple[str, ...]
    called: str  # the computation of a fusion; empty for others


class Dataflow:
    """Where the values of a program come from."""

    def __init__(self, text: str) -> None:
        self.instructions = [
            Instruction(
                *(computation, name, shape, operation),
                tuple(NAME.findall(rest.partition(")")[0])) or (rest.partition(")")[0],),
                next(iter(FUSED.findall(rest)), ""),
            )
            for _, computation, body in COMPUTATION.findall(text)
            for name, shape, operation, rest in NAMED.findall(body)
        ]
        self._by_name = {(one.computation, one.name): one for one in self.instructions}
        self._callers = {one.called: one for one in self.instructions if one.called}
        self._roots = {one.computation: one for one in self.instructions}  # the last of each

    def is_of_argument(self, instruction: Instruction) -> bool:
        """Return whether an instruction only moves an argument, or what a loop or branch is given."""
        if instruction.operation == "parameter":
            caller = self._callers.get(instruction.computation)
            return caller is None or self._is_moved(caller, int(instruction.operands[0]))
        if instruction.operation == "fusion":
            return self.is_of_argument(self._roots[instruction.called])
        return instruction.operation in MOVES and self._is_moved(instruction, 0)

    def _is_moved(self, instruction: Instruction, index: int) -> bool:
        operand = self._by_name.get((instruction.computation, instruction.operands[index]))
        return operand is not None and self.is_of_argument(operand)


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
