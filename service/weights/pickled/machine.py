"""An interpreter of pickle opcodes that, unlike Python's unpickler, never imports or calls what the pickle names.

Source: https://github.com/python/cpython/blob/main/Lib/pickletools.py (the opcodes and their arguments)
"""

import io
import pickletools
from collections.abc import Callable, Mapping
from types import MappingProxyType

from service.weights.pickled.calls import CALLS, build_storage, call
from service.weights.pickled.values import STORAGES, Group, Name, PickleRefusal, Value

# Enough for about 20,000 tensors in a file. An opcode pushes at most one value, so this also bounds the memory.
MAX_OPCODES = 1_000_000
MAX_PICKLE_BYTES = 16 * 1024 * 1024
MAX_NESTING = 6  # a dictionary of tensors needs 2, its `_metadata` 3
# Attributes of a state dictionary that are ignored: `_metadata` holds the versions of its modules.
ATTRIBUTES = {"_metadata"}
SCALARS = frozenset(("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")) | frozenset(
    ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "SHORT_BINSTRING", "BINSTRING")
)
CONSTANTS: Mapping[str, Value] = MappingProxyType({"NONE": None, "NEWTRUE": True, "NEWFALSE": False})


def interpret(data: bytes) -> tuple[Value, int]:
    """Return the value of the pickle at the start of the data, and its length in bytes.

    Raises:
        PickleRefusal: the pickle is malformed, truncated, or contains something that no tensor needs.
    """
    machine, stream = _Machine(), io.BytesIO(data)
    try:
        for _ in range(MAX_OPCODES):
            opcode = _read_opcode(stream)
            if opcode.name == "STOP":
                return machine.result(), stream.tell()
            machine.step(opcode.name, _read_argument(opcode, stream))
    except (ValueError, OverflowError) as error:
        reason = f"is malformed or truncated: {str(error)[:100]}."
        raise PickleRefusal(reason, is_cut=True) from error
    raise PickleRefusal(f"has more than {MAX_OPCODES} opcodes.")


def _read_opcode(stream: io.BytesIO) -> pickletools.OpcodeInfo:
    """Return the next opcode; refuse unsupported ones before reading their argument."""
    code = stream.read(1)
    opcode = BY_CODE.get(code.decode("latin-1"))
    if opcode is None:
        raise ValueError(f"{code!r} is not an opcode" if code else "the last opcode is missing")
    if opcode.name not in SUPPORTED:
        raise PickleRefusal(f"uses the opcode {opcode.name}, which no file of tensors needs.", opcode.name)
    return opcode


def _read_argument(opcode: pickletools.OpcodeInfo, stream: io.BytesIO) -> object:
    if opcode.name == "GLOBAL":  # two raw lines; pickletools would interpret escapes in them
        return ".".join(_read_line(stream) for _ in ("module", "name"))
    return opcode.arg.reader(stream) if opcode.arg else None


def _read_line(stream: io.BytesIO) -> str:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise ValueError("a line has no end")
    return line[:-1].decode("ascii")


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self) -> None:
        self._stack: list[Value] = []
        self._marks: list[int] = []  # heights of the stack
        self._memo: dict[int, Value] = {}

    def step(self, name: str, argument: object) -> None:
        """Execute one supported opcode with its decoded argument."""
        if name in SCALARS:
            self._stack.append(CONSTANTS.get(name, argument))  # pyright: ignore[reportArgumentType]
        else:
            OPCODES[name](self, argument)

    def result(self) -> Value:
        if len(self._stack) != 1 or self._marks:
            raise PickleRefusal("ends with more than one value, or none.")
        return self._stack[0]

    def mark(self, _: object) -> None:
        self._marks.append(len(self._stack))

    def put(self, index: object) -> None:
        assert isinstance(index, int)
        self._memo[index] = self._top()

    def memoize(self, _: object) -> None:
        self._memo[len(self._memo)] = self._top()

    def get(self, index: object) -> None:
        if not isinstance(index, int) or index not in self._memo:
            raise PickleRefusal(f"reads entry {index} of its memo, which it has not written.")
        self._stack.append(self._memo[index])

    def name(self, argument: object) -> None:
        self._push_name(str(argument))

    def name_from_stack(self, _: object) -> None:
        module, name = self._pop(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleRefusal("names a function by something other than text.")
        self._push_name(f"{module}.{name}")

    def tuple_from_mark(self, _: object) -> None:
        self.tuple_of(len(self._stack) - self._pop_mark())

    def tuple_of(self, count: int) -> None:
        values = tuple(self._pop(count))
        self._stack.append(Group(values, self._close(values)))

    def list_(self, _: object) -> None:
        self._stack.append(Group([]))

    def dictionary(self, _: object) -> None:
        self._stack.append(Group({}))

    def append(self, _: object) -> None:
        self._extend(self._pop(1))

    def extend(self, _: object) -> None:
        self._extend(self._pop(len(self._stack) - self._pop_mark()))

    def set_item(self, _: object) -> None:
        self._update(self._pop(2))

    def set_items(self, _: object) -> None:
        self._update(self._pop(len(self._stack) - self._pop_mark()))

    def persistent_id(self, _: object) -> None:
        [value] = self._pop(1)
        values = value.values if isinstance(value, Group) else ()
        self._stack.append(build_storage(list(values) if isinstance(values, tuple) else []))

    def reduce(self, _: object) -> None:
        function, arguments = self._pop(2)
        self._stack.append(call(function, arguments))

    def build(self, _: object) -> None:
        [state] = self._pop(1)
        names = state.values if isinstance(state, Group) else None
        if not isinstance(names, dict) or not names.keys() <= ATTRIBUTES:
            raise PickleRefusal("sets attributes that no dictionary of tensors has.")
        self._open_top(dict)

    def _push_name(self, path: str) -> None:
        if path not in CALLS and path not in STORAGES:
            # Defends against T13.
            raise PickleRefusal(f"asks for {path!r:.200}, which no tensor needs.", path)
        self._stack.append(Name(path))

    def _extend(self, values: list[Value]) -> None:
        depth, group = self._close(values), self._open_top(list)
        group.depth = max(group.depth, depth)
        assert isinstance(group.values, list)
        group.values.extend(values)

    def _update(self, pairs: list[Value]) -> None:
        depth, group = self._close(pairs), self._open_top(dict)
        assert isinstance(group.values, dict)
        group.depth = max(group.depth, depth)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):  # an odd number is a ValueError
            if not isinstance(key, str | int):  # numbers are those of an optimizer's parameters
                raise PickleRefusal("has a dictionary with keys that are neither text nor numbers.")
            if key in group.values:
                raise PickleRefusal(f"has {key!r:.200} twice in a dictionary.")
            group.values[key] = value

    def _close(self, values: "list[Value] | tuple[Value, ...]") -> int:
        """Close the groups among these values; return the depth of a group that contains them."""
        depth = 1
        for value in values:
            if isinstance(value, Group):
                value.is_closed = True
                depth = max(depth, value.depth + 1)
        if depth > MAX_NESTING:
            raise PickleRefusal(f"nests more than {MAX_NESTING} deep.")
        return depth

    def _open_top(self, kind: type) -> Group:
        top = self._top()
        if not isinstance(top, Group) or not isinstance(top.values, kind) or top.is_closed:
            raise PickleRefusal(f"changes a value that is no {kind.__name__} of its own.")
        return top

    def _top(self) -> Value:
        self._need(1)
        return self._stack[-1]

    def _pop(self, count: int) -> list[Value]:
        self._need(count)
        values = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return values

    def _pop_mark(self) -> int:
        if not self._marks:
            raise PickleRefusal("takes values from a mark that it has not set.")
        return self._marks.pop()

    def _need(self, count: int) -> None:
        if len(self._stack) - (self._marks[-1] if self._marks else 0) < count:
            raise PickleRefusal("takes more values from its stack than it has put there.")


OPCODES: Mapping[str, Callable[[_Machine, object], None]] = MappingProxyType(
    {
        "PROTO": lambda machine, argument: None,
        "FRAME": lambda machine, argument: None,
        "MARK": _Machine.mark,
        "BINPUT": _Machine.put,
        "LONG_BINPUT": _Machine.put,
        "MEMOIZE": _Machine.memoize,
        "BINGET": _Machine.get,
        "LONG_BINGET": _Machine.get,
        "GLOBAL": _Machine.name,
        "STACK_GLOBAL": _Machine.name_from_stack,
        "EMPTY_TUPLE": lambda machine, argument: machine.tuple_of(0),
        "TUPLE": _Machine.tuple_from_mark,
        "TUPLE1": lambda machine, argument: machine.tuple_of(1),
        "TUPLE2": lambda machine, argument: machine.tuple_of(2),
        "TUPLE3": lambda machine, argument: machine.tuple_of(3),
        "EMPTY_LIST": _Machine.list_,
        "EMPTY_DICT": _Machine.dictionary,
        "APPEND": _Machine.append,
        "APPENDS": _Machine.extend,
        "SETITEM": _Machine.set_item,
        "SETITEMS": _Machine.set_items,
        "BINPERSID": _Machine.persistent_id,
        "REDUCE": _Machine.reduce,
        "BUILD": _Machine.build,
    }
)
BY_CODE = MappingProxyType({opcode.code: opcode for opcode in pickletools.opcodes})
SUPPORTED = SCALARS | OPCODES.keys() | {"STOP"}
