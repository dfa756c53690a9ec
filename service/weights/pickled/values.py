"""Values that a pickle of tensors may hold. None of them can do anything."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Names of safetensors' types, and the bytes of one element, by the class of PyTorch's storages.
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
    """A pickle holds something that a file of tensors has no use for, or that does not fit its bytes."""

    def __init__(self, reason: str, name: str | None = None, *, is_cut: bool = False) -> None:
        super().__init__(reason)
        self.name = name  # of the function, class, opcode or entry that is refused
        self.is_cut = is_cut  # the bytes may be the beginning of a longer pickle


@dataclass(frozen=True, slots=True)
class Name:
    """A function or a class of the closed list, as text."""

    path: str  # "collections.OrderedDict"


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of elements elsewhere in the file."""

    key: str
    dtype_name: str  # as safetensors spells it: "BF16"
    element_bytes: int
    num_elements: int

    @property
    def num_bytes(self) -> int:
        """The bytes of all elements."""
        return self.num_elements * self.element_bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """A view of a storage, all of it inside."""

    storage: Storage
    offset: int  # of the first element, in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None: row-major without gaps
    num_elements: int  # of the storage, from the first that it uses to the last


@dataclass(slots=True, eq=False, repr=False)  # both would visit what it shares again and again
class Group:
    """A tuple, a list or a dictionary with keys of text; closed once another group or a call holds it."""

    values: "tuple[Value, ...] | list[Value] | dict[str, Value]"
    depth: int = 1
    is_closed: bool = False


type Value = bool | int | float | str | Name | Storage | Tensor | Group | None
