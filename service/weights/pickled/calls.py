"""The calls that a pickle of tensors may make: an allowlist of functions that each build a description.

Source: https://github.com/pytorch/pytorch/blob/main/torch/_utils.py (the functions and their arguments)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

from service.weights.pickled.values import STORAGES, Group, Name, PickleRefusal, Storage, Tensor, Value

MAX_DIMENSIONS = 8
MAX_NUMBER = 2**62


def build_storage(values: Sequence[Value]) -> Storage:
    """Parse a persistent id, `("storage", class, key, device, number of elements)`."""
    match values:
        case ["storage", Name(path), str(key), str(), int(num_elements), *rest] if rest in ([], [None]):
            if path not in STORAGES:
                raise PickleRefusal(f"uses {path} as the class of a storage.", path)
            return Storage(key, *STORAGES[path], _number(num_elements))
    raise PickleRefusal("has a persistent id that names no storage.")


def call(function: Value, arguments: Value) -> Value:
    """Evaluate a call of an allowlisted function.

    Raises:
        PickleRefusal: the function is not on the allowlist, or its arguments describe no tensor.
    """
    if not isinstance(function, Name) or function.path not in CALLS:
        name = function.path if isinstance(function, Name) else type(function).__name__
        raise PickleRefusal(f"calls {name}, which builds no tensor.", name)
    if not isinstance(arguments, Group) or not isinstance(arguments.values, tuple):
        raise PickleRefusal(f"calls {function.path} with arguments that are no tuple.")
    return CALLS[function.path](arguments.values)


def _dictionary(arguments: Sequence[Value]) -> Group:
    if arguments:
        raise PickleRefusal("calls collections.OrderedDict with arguments.")
    return Group({})


def _tensor(arguments: Sequence[Value]) -> Tensor:
    match arguments:
        case [Storage() as storage, int(offset), Group(tuple(shape)), Group(tuple(strides)), *rest] if _is_plain(rest):
            return _view(storage, _number(offset), _numbers(shape), _numbers(strides))
    raise PickleRefusal("calls a function that builds tensors with arguments that describe no plain tensor.")


def _is_plain(rest: Sequence[Value]) -> bool:
    """Return whether a tensor has neither hooks nor metadata, which may change its elements (the negative bit)."""
    match rest:
        case []:
            return True
        case [bool(), hooks]:
            return _is_empty(hooks)
        case [bool(), hooks, metadata]:
            return _is_empty(hooks) and (metadata is None or _is_empty(metadata))
    return False


def _is_empty(value: Value) -> bool:
    return isinstance(value, Group) and not value.values


def _parameter(arguments: Sequence[Value]) -> Tensor:
    match arguments:
        case [Tensor() as tensor, bool(), hooks] if _is_empty(hooks):
            return tensor
    raise PickleRefusal("calls torch._utils._rebuild_parameter with arguments that describe no plain parameter.")


def _view(storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
        raise PickleRefusal(f"has a tensor of {len(shape)} dimensions with {len(strides)} strides.")
    num_elements = math.prod(shape)
    if num_elements == 0:
        return Tensor(storage, min(offset, storage.num_elements), shape, None, 0)
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if offset + span > storage.num_elements:
        raise PickleRefusal(
            f"has a tensor of shape {list(shape)} and strides {list(strides)} at element {offset}, "
            f"outside of storage {storage.key!r} of {storage.num_elements} elements."
        )
    if num_elements > span:
        raise PickleRefusal(f"has a tensor of shape {list(shape)} that repeats elements (strides {list(strides)}).")
    row_major = [1, *accumulate(reversed(shape[1:]), lambda a, b: a * b)][::-1] if shape else []
    is_row_major = all(size == 1 or a == b for size, a, b in zip(shape, strides, row_major, strict=True))
    return Tensor(storage, offset, shape, None if is_row_major else strides, span)


def _numbers(values: Sequence[Value]) -> tuple[int, ...]:
    return tuple(_number(value) for value in values)


def _number(value: Value) -> int:
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise PickleRefusal("has a size, a stride or an offset that is not an integer or is out of range.")
    return value


CALLS: Mapping[str, Callable[[Sequence[Value]], Value]] = MappingProxyType(
    {
        "collections.OrderedDict": _dictionary,
        "torch._utils._rebuild_tensor": _tensor,
        "torch._utils._rebuild_tensor_v2": _tensor,
        "torch._utils._rebuild_parameter": _parameter,
    }
)
