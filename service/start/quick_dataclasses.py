"""Methods of dataclasses as closures, which one compiled function serves for all classes.

Python 3.12 writes, parses and compiles the source of six functions for every frozen dataclass: half a millisecond, for
each of the 380 classes that a start imports. Only `__init__` has a signature of its own; the others do the same with
other fields. What they return, raise and compare is what the library's own do.

Source: CPython 3.12, Lib/dataclasses.py, `_create_fn` and its callers.
"""

import dataclasses
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
type _Fields = Sequence["dataclasses.Field[Any]"]
type _Function = Callable[..., Any]


def make_dataclasses_quickly() -> None:
    """Let every dataclass that is defined from now on have such methods."""
    library: Any = dataclasses
    library._repr_fn = _repr
    library._hash_fn = _hash
    library._cmp_fn = _comparison
    library._frozen_get_del_attr = _frozen


def _repr(fields: _Fields, _: Mapping[str, Any]) -> _Function:
    names = [field.name for field in fields]

    def __repr__(self: Any) -> str:
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{self.__class__.__qualname__}({values})"

    return dataclasses._recursive_repr(__repr__)  # pyright: ignore[reportAttributeAccessIssue]


def _hash(fields: _Fields, _: Mapping[str, Any]) -> _Function:
    values = _values_of([field.name for field in fields])

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _comparison(name: str, sign: str, own: str, other: str, **_: Any) -> _Function:
    """Return a comparison of the fields that `own` names, such as `(self.x,self.y,)`."""
    values, compare = _values_of(re.findall(r"self\.(\w+)", own)), _COMPARISONS[sign]

    def compared(self: Any, other: Any) -> Any:
        if other.__class__ is self.__class__:
            return compare(values(self), values(other))
        return NotImplemented

    compared.__name__ = name
    return compared


def _frozen(cls: type[Any], fields: _Fields, _: Mapping[str, Any]) -> tuple[_Function, _Function]:
    names = frozenset(field.name for field in fields)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


def _values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what returns the values of some attributes as a tuple."""
    match names:
        case []:
            return lambda _: ()
        case [name]:
            return lambda instance: (getattr(instance, name),)
        case _:
            return operator.attrgetter(*names)
