"""Files as `torch.save` writes them, put together opcode by opcode; torch is not needed, and neither is it imported."""

import io
import struct
import zipfile
from collections.abc import Mapping
from itertools import accumulate

import numpy as np

CLASSES = {
    "float32": "torch.FloatStorage",
    "float16": "torch.HalfStorage",
    "bfloat16": "torch.BFloat16Storage",
    "float64": "torch.DoubleStorage",
    "int64": "torch.LongStorage",
    "int32": "torch.IntStorage",
    "int16": "torch.ShortStorage",
    "int8": "torch.CharStorage",
    "uint8": "torch.ByteStorage",
    "bool": "torch.BoolStorage",
}
MAGIC_NUMBER, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
HOOKS = b"ccollections\nOrderedDict\n)R"
NONE, TRUE, FALSE, MARK, REDUCE, BUILD, STOP = b"N", b"\x88", b"\x89", b"(", b"R", b"b", b"."


def text(value: str) -> bytes:
    encoded = value.encode(errors="surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def number(value: int) -> bytes:
    encoded = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def name(path: str) -> bytes:
    module, _, attribute = path.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def group(*items: bytes) -> bytes:
    return MARK + b"".join(items) + b"t"


def numbers(values: tuple[int, ...]) -> bytes:
    return group(*map(number, values))


def call(path: str, *arguments: bytes) -> bytes:
    return name(path) + group(*arguments) + REDUCE


def storage(key: str, num_elements: int, path: str = "torch.FloatStorage", *more: bytes) -> bytes:
    return group(text("storage"), name(path), text(key), text("cpu"), number(num_elements), *more) + b"Q"


def view(
    stored: bytes,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    *,
    offset: int = 0,
    rest: tuple[bytes, ...] = (FALSE, HOOKS),
) -> bytes:
    """Return a tensor over a storage, row-major unless there are strides."""
    strides = row_major(shape) if strides is None else strides
    return call("torch._utils._rebuild_tensor_v2", stored, number(offset), numbers(shape), numbers(strides), *rest)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(reversed((*shape[1:], 1)), lambda a, b: a * b))[::-1] if shape else ()


def dictionary(items: Mapping[str, bytes]) -> bytes:
    return b"}" + MARK + b"".join(text(key) + value for key, value in items.items()) + b"u"


def pickled(value: bytes) -> bytes:
    return b"\x80\x02" + value + STOP


def archive(
    pickle: bytes, storages: Mapping[str, bytes], more: Mapping[str, bytes] | None = None, *, has_descriptors=False
) -> bytes:
    """Return a zip file with this pickle and these storages by key; `more` replaces or adds records by name."""
    records = {"data.pkl": pickle, "byteorder": b"little"}
    records |= {f"data/{key}": data for key, data in storages.items()} | {"version": b"3\n"} | dict(more or {})
    file = _OneWay() if has_descriptors else io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as written:
        for record, data in records.items():
            written.writestr(f"model/{record}", data)
    return file.getvalue()


class _OneWay(io.BytesIO):
    """A file in which the writer cannot go back, as PyTorch's: sums and sizes follow each record."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation

    def tell(self) -> int:
        raise io.UnsupportedOperation


def legacy(
    value: bytes,
    storages: Mapping[str, bytes],
    element_bytes: int = 4,
    *,
    machine: bytes = TRUE,
    keys: bytes | None = None,
) -> bytes:
    """Return a file of the old format: five pickles, then each storage after its number of elements."""
    keys = keys or b"]" + MARK + b"".join(text(key) for key in storages) + b"e"
    heads = [number(MAGIC_NUMBER), number(PROTOCOL), dictionary({"little_endian": machine}), value, keys]
    bodies = (struct.pack("<q", len(data) // element_bytes) + data for data in storages.values())
    return b"".join([*map(pickled, heads), *bodies])


def state(tensors: Mapping[str, np.ndarray]) -> tuple[bytes, dict[str, bytes]]:
    """Return a dictionary of tensors, and the bytes of their storages: arrays that share memory share a storage."""
    items: dict[str, bytes] = {}
    storages: dict[str, bytes] = {}
    keys: dict[int, str] = {}
    for tensor, array in tensors.items():
        whole = array if array.base is None else array.base
        key = keys.setdefault(id(whole), str(len(keys)))
        storages[key] = whole.tobytes()
        strides = tuple(stride // array.itemsize for stride in array.strides)
        offset = (array.ctypes.data - whole.ctypes.data) // array.itemsize
        stored = storage(key, whole.size, CLASSES[array.dtype.name])
        items[tensor] = view(stored, array.shape, strides, offset=offset)
    return dictionary(items), storages
