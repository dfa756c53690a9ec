"""Pickled weights are read as PyTorch wrote them: both formats, every protocol, views, tied and transposed tensors."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import RefusedPickle
from service.weights.pickled.machine import interpret
from service.weights.pickled.state_dict import tensors_of
from service.weights.pickled.values import PickleRefusal
from service.weights.safetensors import TensorEntry
from tests.weights.pickled.read import entries_of, weights_of
from tests.weights.pickled.written import (
    BUILD,
    HOOKS,
    NONE,
    TRUE,
    archive,
    call,
    dictionary,
    legacy,
    number,
    pickled,
    state,
    storage,
    text,
    view,
)

FILES = Path(__file__).parent / "files"
PLAIN = np.arange(24, dtype=np.float32).reshape(4, 6)
FORTY = np.arange(40, dtype=np.float32)
# What make_torch_files.py writes.
BY_TORCH = {
    "plain": PLAIN,
    "tied": PLAIN,
    "view": PLAIN[1:3],
    "transposed": FORTY.reshape(5, 8).T,
    "strided": FORTY.reshape(10, 4)[::2, 1:3],
    "bfloat16": np.arange(15).reshape(3, 5),
    "float16": np.arange(7),
    "parameter": np.arange(4).reshape(2, 2),
    "wide": np.arange(6).reshape(1, 6),
}
MODULE = {"0.weight": np.arange(12).reshape(4, 3)} | dict.fromkeys(("0.bias", "1.weight", "1.bias"), np.arange(4))
BASE = np.arange(96, dtype=np.float32).reshape(8, 12).copy()
ARRAYS = {
    "whole": BASE,
    "tied": BASE,
    "rows": BASE[2:5],
    "columns": BASE[:, 3:7],
    "transposed": BASE.T,
    "half": np.arange(10, dtype=np.float16),
    "brain": np.arange(10).astype(ml_dtypes.bfloat16).reshape(5, 2),
}
VALUE, STORAGES = state(ARRAYS)
ZIP = archive(pickled(VALUE), STORAGES)


def shapes(arrays: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def check(weights: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(weights) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(weights[name], array.astype(np.float32), name)


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir()))
def test_a_file_that_pytorch_wrote_is_read(tmp_path: Path, name: str):
    expected = MODULE if name == "module.bin" else BY_TORCH
    check(weights_of(tmp_path, (FILES / name).read_bytes(), shapes(expected)), expected)


@pytest.mark.parametrize("chunk_bytes", [8, 52, 10**6])
@pytest.mark.parametrize("has_descriptors", [False, True])
def test_tensors_that_share_a_storage_are_read_however_it_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, has_descriptors: bool
):
    from dataclasses import replace

    from service.storage import open_files

    monkeypatch.setattr(open_files, "FILE_LIMITS", replace(open_files.FILE_LIMITS, chunk_bytes=chunk_bytes))
    content = archive(pickled(VALUE), STORAGES, has_descriptors=has_descriptors)
    check(weights_of(tmp_path, content, shapes(ARRAYS)), ARRAYS)


def test_the_old_format_is_read(tmp_path: Path):
    arrays = {name: array for name, array in ARRAYS.items() if array.dtype == np.float32}
    check(weights_of(tmp_path, legacy(*state(arrays)), shapes(arrays)), arrays)


def test_an_old_file_is_read_as_far_as_its_pickles_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("service.weights.pickled.legacy.FIRST_READ_BYTES", 16)
    content = legacy(*state({"a": BASE}))
    check(weights_of(tmp_path, content, {"a": BASE.shape}), {"a": BASE})


def test_entries_say_where_the_elements_lie(tmp_path: Path):
    content = archive(pickled(VALUE), STORAGES)
    entries = entries_of(tmp_path, content)
    whole, rows, columns = entries["whole"], entries["rows"], entries["columns"]
    assert content[whole.begin : whole.end] == BASE.tobytes()
    assert entries["tied"] == whole
    assert (rows.begin - whole.begin, rows.end - rows.begin, rows.strides) == (2 * 48, 3 * 48, None)
    assert (columns.begin - whole.begin, columns.end - columns.begin) == (12, (7 * 12 + 4) * 4)
    assert columns.strides == (12, 1)
    assert entries["brain"] == TensorEntry(
        "pytorch_model.bin", "BF16", (5, 2), entries["brain"].begin, entries["brain"].end
    )


@pytest.mark.parametrize(("strides", "kept"), [((12, 4, 1), None), ((16, 4, 1), (16, 4, 1))])
def test_three_dimensions_have_strides_unless_they_are_row_major(tmp_path: Path, strides, kept):
    value = dictionary({"a": view(storage("0", 32), (2, 3, 4), strides)})
    assert entries_of(tmp_path, archive(pickled(value), {"0": bytes(128)}))["a"].strides == kept


def test_a_scalar_an_empty_tensor_a_parameter_and_versions_of_modules(tmp_path: Path):
    stored = storage("0", 3, "torch.LongStorage")
    value = dictionary(
        {
            "scalar": view(stored, (), offset=2),
            "empty": view(stored, (0, 3), (3, 1)),
            "parameter": call("torch._utils._rebuild_parameter", view(stored, (3,)), TRUE, HOOKS),
            "one": view(stored, (1, 1, 3), (77, 5, 1)),
        }
    )
    versions = dictionary({"_metadata": dictionary({"": dictionary({"version": number(1)})})})
    entries = entries_of(tmp_path, archive(pickled(value + versions + BUILD), {"0": bytes(24)}))
    lengths = {name: (entry.shape, entry.end - entry.begin, entry.strides) for name, entry in entries.items()}
    assert lengths == {
        "scalar": ((), 8, None),
        "empty": ((0, 3), 0, None),
        "parameter": ((3,), 24, None),
        "one": ((1, 1, 3), 24, None),
    }


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(ZIP) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_nothing(tmp_path_factory: pytest.TempPathFactory, place: int, bits: int):
    folder = tmp_path_factory.mktemp("model")
    mutated = bytearray(ZIP)
    mutated[place] ^= bits
    try:
        entries = entries_of(folder, bytes(mutated))
    except RefusedPickle:
        return
    assert len(entries) == len(ARRAYS)
    assert entries == entries_of(folder, ZIP)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(VALUE)), st.integers(0, 3), st.binary(max_size=3)), max_size=4))
def test_a_pickle_with_other_bytes_is_refused_or_holds_tensors_within_their_storages(edits):
    data = bytearray(pickled(VALUE))
    for place, num_removed, new in edits:
        data[place : place + num_removed] = new
    try:
        tensors = tensors_of(interpret(bytes(data))[0])
    except PickleRefusal:
        return
    for tensor in tensors.values():
        assert 0 <= tensor.offset <= tensor.offset + tensor.num_elements <= tensor.storage.num_elements
        strides = tensor.strides or ()
        assert sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=False)) < max(
            1, tensor.num_elements
        )


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_a_value(data: bytes):
    try:
        _, num_bytes = interpret(data)
    except PickleRefusal:
        return
    assert 0 < num_bytes <= len(data)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float64", "F64"), ("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16"), ("int64", "I64"),
        ("int32", "I32"), ("int16", "I16"), ("int8", "I8"), ("uint8", "U8"), ("bool", "BOOL"),
    ],
)  # fmt: skip
def test_elements_have_the_types_and_sizes_of_their_storages(tmp_path: Path, dtype: str, name: str):
    array = np.arange(6).astype(dtype).reshape(2, 3).copy()
    value, storages = state({"w": array})
    entry = entries_of(tmp_path, archive(pickled(value), storages))["w"]
    assert (entry.dtype_name, entry.shape, entry.end - entry.begin) == (name, (2, 3), array.nbytes)


OPTIMIZER = dictionary({"state": b"}" + number(0) + dictionary({"exp_avg": view(storage("9", 2), (2,))}) + b"s"})
BESIDE = {"epoch": number(3), "lr": b"G" + b"\0" * 8, "scheduler": NONE, "optimizer": OPTIMIZER}
UNDER = [["state_dict"], ["model"], ["module"], ["model_state_dict"], ["my_model"], ["module", "model"]]


@pytest.mark.parametrize("path", UNDER, ids="/".join)
@pytest.mark.parametrize("is_legacy", [False, True])
def test_the_tensors_of_a_checkpoint_of_training_lie_under_a_name(tmp_path: Path, path: list[str], is_legacy: bool):
    value, storages = state({"w": PLAIN})
    is_known = path != ["my_model"]
    for depth, name in enumerate(reversed(path), 1):
        value = dictionary({**(BESIDE if is_known and depth == len(path) else {}), "version": number(1), name: value})
    if is_known:
        storages["9"] = np.ones(2, np.float32).tobytes()
    content = legacy(value, storages) if is_legacy else archive(pickled(value), storages)
    check(weights_of(tmp_path, content, {"w": PLAIN.shape}), {"w": PLAIN})


def test_numbers_beside_tensors_are_left_out(tmp_path: Path):
    value = dictionary({"w": view(storage("0", 2), (2,)), "step": number(3), "note": text("x"), "none": NONE})
    content = archive(pickled(value), {"0": np.arange(2, dtype=np.float32).tobytes()})
    assert list(entries_of(tmp_path, content)) == ["w"]
