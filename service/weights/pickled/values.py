"""Values that a pickle of tensors may contain, all of them inert."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# safetensors dtype name and element size in bytes, by PyTorch storage class.
# Source: https://pytorch.org/docs/stable/storage.html
STORAGES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "torch.FloatStorage": ("F32", 4),
        "torch.HalfStorage": ("F16", 2),
        "torch.BFloat16Storage": ("BF16", 2),
        "torch.DoubleStorage": ("F64", 8),
        "torch.LongStorage": ("I64", 8),
        "torch.IntStorage": ("I32", 4),
        "torch.ShortStorage": ("I16", 2),
        "torch.CharStorage": ("I8", 1),
        "torch.ByteStorage": ("U8", 1),
        "torch.BoolStorage": ("BOOL", 1),
    }
)


class PickleRefusal(Exception):
    """A pickle contains something that a file of tensors does not need, or contradicts its bytes."""

    def __init__(self, reason: str, name: str | None = None, *, is_cut: bool = False) -> None:
        super().__init__(reason)
        self.name = name  # of the refused function, class, opcode or entry
        self.is_cut = is_cut  # whether the bytes may be the start of a longer pickle


@dataclass(frozen=True, slots=True)
class Name:
    """The path of an allowlisted function or class."""

    path: str  # "collections.OrderedDict"


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of elements stored elsewhere in the file."""

    key: str
    dtype_name: str  # as safetensors spells it: "BF16"
    element_bytes: int
    num_elements: int

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.element_bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """A view of a storage, entirely within its bounds."""

    storage: Storage
    offset: int  # of the first element, in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None if row-major without gaps
    num_elements: int  # of the storage, from the first to the last used


@dataclass(slots=True, eq=False, repr=False)  # both could take exponential time on shared values
class Group:
    """A tuple, a list or a dictionary; closed once another group or a call refers to it."""

    values: "tuple[Value, ...] | list[Value] | dict[str | int, Value]"
    depth: int = 1
    is_closed: bool = False


type Value = bool | int | float | str | Name | Storage | Tensor | Group | None
