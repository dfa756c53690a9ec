"""The state dictionary in a pickled value: the value itself, or what a program that trains keeps under a name in it.

| the value | the tensors are |
|---|---|
| has tensors | its own |
| has dictionaries of tensors under one of `NAMES` | those of the first such name |
| has one dictionary of tensors under another name | those |

What lies beside them, as the state of an optimizer, counters and settings, is left out.
"""

from collections.abc import Iterator, Mapping

from service.weights.pickled.values import Group, PickleRefusal, Storage, Tensor, Value

# Source: lightning `trainer/connectors/checkpoint_connector.py` (state_dict); DeepSpeed `runtime/engine.py` (module);
# PyTorch's tutorial "Saving and loading a general checkpoint" (model_state_dict); timm, fairseq and torchtune (model).
NAMES = ("state_dict", "model_state_dict", "model", "module")


def tensors_of(value: Value) -> dict[str, Tensor]:
    """Return the tensors of a state dictionary by name.

    Raises:
        PickleRefusal: the value has no dictionary of tensors, or several and none has a name that programs use.
    """
    values = _dictionary(value)
    if values is None:
        raise PickleRefusal("does not contain a dictionary of tensors.")
    while values and not any(isinstance(tensor, Tensor) for tensor in values.values()):
        values = _inner(values)
    tensors = {}
    for name, tensor in values.items():
        if isinstance(tensor, Tensor) and isinstance(name, str):
            tensors[name] = tensor
        elif isinstance(tensor, Tensor | Storage) or any(True for _ in storages_of(tensor)):
            kind = "a dictionary or a list" if isinstance(tensor, Group) else type(tensor).__name__
            raise PickleRefusal(f"has {kind} under {name!r:.200} instead of a tensor.", str(name))
    return tensors


def storages_of(value: Value) -> Iterator[Storage]:
    """Return the storages of all tensors in a value, some of them more than once."""
    waiting, seen = [value], set[int]()
    while waiting:
        match waiting.pop():
            case Tensor(storage) | (Storage() as storage):
                yield storage
            case Group(values) as group if id(group) not in seen:  # groups may be shared, exponentially often
                seen.add(id(group))
                waiting += values.values() if isinstance(values, dict) else values
            case _:
                pass


def _inner(values: Mapping[str | int, Value]) -> Mapping[str | int, Value]:
    """Return the dictionary of tensors inside one that has none of its own."""
    found = {
        name: inner
        for name, value in values.items()
        if (inner := _dictionary(value)) is not None and any(True for _ in storages_of(value))
    }
    known = [name for name in NAMES if name in found]
    if not known and len(found) > 1:
        shown = ", ".join(f"{name!r:.60}" for name in list(found)[:4])
        raise PickleRefusal(f"has several dictionaries of tensors: {shown}.", str(next(iter(found))))
    if not found:
        names = ", ".join(f"{name!r:.60}" for name in list(values)[:4]) or "nothing"
        raise PickleRefusal(f"does not contain a dictionary of tensors, but {names}.")
    return found[known[0] if known else next(iter(found))]


def _dictionary(value: Value) -> Mapping[str | int, Value] | None:
    return value.values if isinstance(value, Group) and isinstance(value.values, dict) else None
