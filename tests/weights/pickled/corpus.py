"""Files that are no pickled weights: those that would run code, that point outside, that lie, and that are cut."""

import gzip
import io
import struct
import tarfile
import zipfile
import zlib

from tests.weights.pickled.written import (
    BUILD,
    FALSE,
    HOOKS,
    MARK,
    NONE,
    REDUCE,
    TRUE,
    archive,
    call,
    dictionary,
    group,
    legacy,
    name,
    number,
    numbers,
    pickled,
    storage,
    text,
    view,
)

SING = "tests.weights.pickled.canary.sing"
COMMAND = text('python3 -c "import tests.weights.pickled.canary"')
CODE = text("import tests.weights.pickled.canary")
EIGHT = {"0": bytes(32)}  # eight elements of float32
PLAIN = view(storage("0", 8), (2, 4))
GOOD = dictionary({"w": PLAIN})


def state(value: bytes) -> bytes:
    return archive(pickled(value), EIGHT)


def tensor(value: bytes) -> bytes:
    return state(dictionary({"w": value}))


def rebuilt(*arguments: bytes) -> bytes:
    return tensor(call("torch._utils._rebuild_tensor_v2", *arguments))


def nested(depth: int) -> bytes:
    return b")" + b"\x85" * depth  # tuples of one


def changed(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content
    return content.replace(old, new)


def compressed() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("model/data.pkl", pickled(GOOD))
        written.writestr("model/data/0", bytes(32))
    return file.getvalue()


def twice() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        for record in ("data.pkl", "data/0", "data/1"):
            written.writestr(f"model/{record}", pickled(GOOD) if record == "data.pkl" else bytes(32))
    return changed(file.getvalue(), b"model/data/1", b"model/data/0")


def in_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as written:
        written.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    return file.getvalue()


def directory_with(offset: int, form: str, value: int) -> bytes:
    """Return a file with one field of the directory's last entry changed."""
    content = bytearray(state(GOOD))
    struct.pack_into(form, content, content.rindex(b"PK\x01\x02") + offset, value)
    return bytes(content)


# What would run code: by name, the file and what the refusal says.
EXECUTING: dict[str, tuple[bytes, str]] = {
    "os.system": (state(call("os.system", COMMAND)), "asks for 'os.system'"),
    "posix.system": (state(call("posix.system", COMMAND)), "asks for 'posix.system'"),
    "builtins.exec": (state(call("builtins.exec", CODE)), "asks for 'builtins.exec'"),
    "builtins.eval": (state(call("builtins.eval", text("print()"))), "asks for 'builtins.eval'"),
    "builtins.__import__": (state(call("builtins.__import__", text(SING))), "asks for 'builtins.__import__'"),
    "builtins.getattr": (state(call("builtins.getattr", PLAIN, text("x"))), "asks for 'builtins.getattr'"),
    "python 2's names": (state(call("__builtin__.eval", text("print()"))), "asks for '__builtin__.eval'"),
    "subprocess.Popen": (state(call("subprocess.Popen", COMMAND, TRUE)), "asks for 'subprocess.Popen'"),
    "runpy": (state(call("runpy._run_code", CODE, b"}")), "asks for 'runpy._run_code'"),
    "the canary": (state(call(SING)), "asks for 'tests.weights.pickled.canary.sing'"),
    "a name that is not called": (tensor(name(SING)), "asks for 'tests.weights.pickled.canary.sing'"),
    "a name from the stack": (state(text("os") + text("system") + b"\x93" + group(COMMAND) + REDUCE), "'os.system'"),
    "torch.load": (state(call("torch.load", text("/x"))), "asks for 'torch.load'"),
    "bytes that torch loads": (state(call("torch.storage._load_from_bytes", text("x"))), "_load_from_bytes'"),
    "a module": (state(call("torch.nn.modules.linear.Linear")), "asks for 'torch.nn.modules.linear.Linear'"),
    "numpy": (state(call("numpy.core.multiarray._reconstruct")), "asks for 'numpy.core.multiarray._reconstruct'"),
    "an attribute of an allowed name": (
        state(text("collections") + text("OrderedDict.__init__.__globals__") + b"\x93"),
        "asks for 'collections.OrderedDict.__init__.__globals__'",
    ),
    "INST": (state(MARK + COMMAND + b"ios\nsystem\n"), "the opcode INST"),
    "OBJ": (state(MARK + name("collections.OrderedDict") + b"o"), "the opcode OBJ"),
    "NEWOBJ": (state(name("collections.OrderedDict") + b")\x81"), "the opcode NEWOBJ"),
    "NEWOBJ_EX": (state(name("collections.OrderedDict") + b")}\x92"), "the opcode NEWOBJ_EX"),
    "an extension": (state(b"\x82\x01"), "the opcode EXT1"),
    "a persistent id as text": (state(b"Pos.system\n"), "the opcode PERSID"),
    "a class as attribute": (
        state(GOOD + dictionary({"__class__": text(SING)}) + BUILD),
        "sets attributes that no dictionary of tensors has",
    ),
    "attributes of a tensor": (tensor(PLAIN + dictionary({"_metadata": NONE}) + BUILD), "no dict of its own"),
    "a called tensor": (state(PLAIN + group() + REDUCE), "calls Tensor, which builds no tensor"),
    "a called storage class": (state(call("torch.FloatStorage", number(8))), "calls torch.FloatStorage"),
    "a dictionary with a factory": (state(call("collections.defaultdict", name(SING))), "asks for 'collections.def"),
    "code beside the pickle": (
        archive(pickled(GOOD), EIGHT, {"code/__torch__.py": b"import os"}),
        "a record 'model/code/__torch__.py', which no file of tensors needs",
    ),
    "a second pickle": (archive(pickled(GOOD), EIGHT, {"constants.pkl": pickled(call(SING))}), "constants.pkl'"),
    "a pickle after the pickle": (archive(pickled(GOOD) + pickled(call(SING)), EIGHT), "after the end of its pickle"),
    "the old format's tensors": (legacy(call("os.system", COMMAND), {}), "asks for 'os.system'"),
    "the old format's machine": (legacy(GOOD, EIGHT, machine=call("os.system", COMMAND)), "asks for 'os.system'"),
    "a bare pickle": (pickled(call("os.system", COMMAND)), "asks for 'os.system'"),
}

# What points outside of its bytes, or grows beyond them.
OUTSIDE: dict[str, tuple[bytes, str]] = {
    "a view beyond its storage": (tensor(view(storage("0", 8), (3, 3))), "outside of storage '0' of 8 elements"),
    "strides beyond": (tensor(view(storage("0", 8), (2, 2), (7, 1))), "outside of storage '0'"),
    "an offset beyond": (tensor(view(storage("0", 8), (1,), offset=8)), "outside of storage '0'"),
    "a negative offset": (tensor(view(storage("0", 8), (1,), offset=-1)), "out of range"),
    "a negative stride": (tensor(view(storage("0", 8), (2,), (-1,), offset=4)), "out of range"),
    "a negative size": (tensor(view(storage("0", 8), (-2,))), "out of range"),
    "a huge size": (tensor(view(storage("0", 8), (2**62, 2**62))), "outside of storage '0'"),
    "a size of 255 bytes": (tensor(view(storage("0", 8), (2**2030,))), "out of range"),
    "a size that is no number": (
        rebuilt(storage("0", 8), number(0), group(text("2")), group(number(1)), FALSE, HOOKS),
        "out of range",
    ),
    "a truth as offset": (rebuilt(storage("0", 8), TRUE, numbers((2,)), numbers((1,)), FALSE, HOOKS), "out of range"),
    "repeated elements": (tensor(view(storage("0", 8), (1000, 8), (0, 1))), "that repeats elements"),
    "too few strides": (tensor(view(storage("0", 8), (2, 2), (1,))), "of 2 dimensions with 1 strides"),
    "nine dimensions": (tensor(view(storage("0", 8), (1,) * 9)), "of 9 dimensions"),
    "a storage that is not there": (tensor(view(storage("7", 8), (8,))), "no bytes of storage '7'"),
    "a path as a key": (tensor(view(storage("../../etc/passwd", 8), (8,))), "no bytes of storage '../../etc/passwd'"),
    "a storage longer than its record": (tensor(view(storage("0", 9), (8,))), "32 bytes of storage '0'; its pickle"),
    "a storage of no tensor": (archive(pickled(GOOD), EIGHT | {"1": b"hidden"}), "a storage '1' that no tensor uses"),
    "one storage as two types": (
        state(dictionary({"w": PLAIN, "v": view(storage("0", 8, "torch.IntStorage"), (8,))})),
        "as two types",
    ),
    "no class of storages": (tensor(view(storage("0", 8, "collections.OrderedDict"), (8,))), "class of a storage"),
    "a persistent id of something else": (tensor(group(text("module"), text("x")) + b"Q"), "names no storage"),
    "a view of the old format": (
        legacy(dictionary({"w": view(storage("0", 8, "torch.FloatStorage", group()), (8,))}), EIGHT),
        "names no storage",
    ),
    "hooks": (
        rebuilt(storage("0", 8), number(0), numbers((8,)), numbers((1,)), FALSE, dictionary({"x": NONE})),
        "describe no plain tensor",
    ),
    "a negative bit": (
        tensor(view(storage("0", 8), (8,), rest=(FALSE, HOOKS, dictionary({"neg": TRUE})))),
        "describe no plain tensor",
    ),
    "too few arguments": (rebuilt(storage("0", 8), number(0)), "describe no plain tensor"),
    "a parameter of nothing": (
        tensor(call("torch._utils._rebuild_parameter", NONE, TRUE, HOOKS)),
        "no plain parameter",
    ),
    "arguments of a dictionary": (tensor(call("collections.OrderedDict", group(text("a")))), "with arguments"),
    "deep nesting": (tensor(nested(7)), "nests more than"),
    "a very deep nesting": (tensor(nested(100_000)), "nests more than"),
    "a list in itself": (state(b"]q\x00h\x00a"), "no list of its own"),
    "a group as a key, hashed in exponential time": (
        state(b"}" + b")" + b"2\x86" * 60 + NONE + b"s"),
        "the opcode DUP",
    ),
    "a tuple as a key": (state(b"}" + group(number(1)) + PLAIN + b"s"), "keys that are neither text nor numbers"),
    "a dictionary that is changed in another": (
        state(b"}q\x00" + text("a") + b"}q\x01s0h\x01" + text("b") + PLAIN + b"s"),
        "the opcode POP",
    ),
    "a name twice": (state(b"}" + MARK + text("w") + PLAIN + text("w") + PLAIN + b"u"), "'w' twice"),
    "a name without a value": (state(b"}" + MARK + text("w") + b"u"), "malformed or truncated"),
    "an entry of the memo that is not there": (state(b"h\x07"), "reads entry 7 of its memo"),
    "an empty stack": (state(REDUCE), "takes more values"),
    "a mark that is not there": (state(b"t"), "a mark that it has not set"),
    "values beneath a mark": (state(NONE + NONE + MARK + b"\x86"), "takes more values"),
    "two values": (state(GOOD + GOOD), "more than one value"),
    "a list": (state(b"]"), "not contain a dictionary of tensors"),
    "a tensor alone": (state(PLAIN), "not contain a dictionary of tensors"),
    "tensors one level further down": (
        state(dictionary({"w": PLAIN, "ema": GOOD})),
        "has a dictionary or a list under 'ema' instead of a tensor",
    ),
    "two dictionaries of tensors": (
        state(dictionary({"actor": GOOD, "critic": GOOD})),
        "several dictionaries of tensors: 'actor', 'critic'",
    ),
    "numbers alone": (state(dictionary({"epoch": number(3)})), "not contain a dictionary of tensors, but 'epoch'"),
}

# Files that lie about their parts, or that another program wrote.
FALSE_FILES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "malformed or truncated"),
    "text": (b"<html>not found</html>", "malformed or truncated"),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", "malformed or truncated"),
    "gzip": (gzip.compress(pickled(GOOD)), "malformed or truncated"),
    "tar, as PyTorch 0.1 wrote": (in_tar(), "takes more values"),
    "zlib": (zlib.compress(pickled(GOOD)), "malformed or truncated"),
    "a compressed record": (compressed(), "compressed or encrypted"),
    "two records of one name": (twice(), "two records 'model/data/0'"),
    "no pickle": (archive(b"", {}, {"data.pkl": b""}).replace(b"data.pkl", b"data/pkl"), "without data.pkl"),
    "records outside of the folder": (
        changed(state(GOOD), b"model/version", b"other/version"),
        "'other/version', which no file of tensors needs",
    ),
    "an absolute record": (changed(state(GOOD), b"model/version", b"/tmp/dversion"), "no file of tensors needs"),
    "big-endian numbers": (archive(pickled(GOOD), EIGHT, {"byteorder": b"big"}), "big-endian"),
    "big-endian numbers of the old format": (legacy(GOOD, EIGHT, machine=FALSE), "big-endian"),
    "a pickle that differs from its sum": (changed(state(GOOD), b"cpu", b"gpu"), "Bad CRC-32"),
    "bytes before the archive": (b"PK\x03\x04" + state(GOOD), "where its directory says"),
    "an offset of the directory that is wrong": (directory_with(42, "<I", 40), "a gap or an overlap"),
    "a size of the directory that is wrong": (directory_with(24, "<I", 10), "compressed or encrypted"),
    "two sizes of the directory that are wrong": (
        changed(directory_with(24, "<I", 3), b"model/version", b"model/version"),
        "compressed or encrypted",
    ),
    "an encrypted record": (directory_with(8, "<H", 1), "compressed or encrypted"),
    "a storage without its count": (legacy(GOOD, EIGHT)[:-8], "It is truncated or invalid"),
    "a storage with another count": (legacy(GOOD, EIGHT, element_bytes=8), "a different number of elements"),
    "storages of no tensor in the old format": (legacy(GOOD, EIGHT | {"1": bytes(4)}), "storages that do not match"),
    "keys of the old format that are no list": (legacy(GOOD, EIGHT, keys=number(7)), "storages that do not match"),
    "keys of the old format that are a text": (legacy(GOOD, EIGHT, keys=text("0")), "storages that do not match"),
    "bytes after the old format": (legacy(GOOD, EIGHT) + b"more", "It is truncated or invalid"),
    "another magic number": (
        changed(legacy(GOOD, EIGHT), b"\x6c\xfc\x9c\x46", b"\x6c\xfc\x9c\x47"),
        "not a PyTorch file",
    ),
}

CORPUS = EXECUTING | OUTSIDE | FALSE_FILES
