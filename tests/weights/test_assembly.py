"""A weight assembled from runs of elements is the one that numpy makes of whole tensors."""

import itertools
from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import pytest

from service.device.mesh import DeviceMesh
from service.models.weight_spec import TensorSource, WeightSpec
from service.weights.assembly import Assembly, TensorPlace, assemble_weights, host_bytes
from tests.checkpoint.streamed import DTYPE, SPECS, TENSORS, made_at_once

MESH = DeviceMesh((jax.devices()[0],))
BF16 = np.dtype(ml_dtypes.bfloat16)


def joined(*, num_kv_heads: int, copies: int = 1) -> WeightSpec:
    """Query, key and value with three query heads to a key-value head, of which several may be one in a checkpoint."""
    heads = num_kv_heads * copies
    sources = (
        TensorSource("q", (heads * 3 * 4, 24), (heads, 3, 4, 24)),
        TensorSource("k", (num_kv_heads * 4, 24), (heads, 1, 4, 24), copies),
        TensorSource("v", (num_kv_heads * 4, 24), (heads, 1, 4, 24), copies),
    )
    axes = ("kv_head", "qkv_group", "head_dim", "embed")
    return WeightSpec("qkv", axes, (heads, 5, 4, 24), sources, concat_axis=1, num_in_axes=1)


BIASES = WeightSpec(
    "bias",
    ("kv_head", "qkv_group", "head_dim"),
    (6, 4, 5),
    (
        TensorSource("q", (60,), (6, 2, 5)),
        TensorSource("k", (10,), (6, 1, 5), copies=3),
        TensorSource("v", (10,), (6, 1, 5), copies=3),
    ),
    concat_axis=1,
)
CASES = {
    "plain": WeightSpec("w", ("a", "b"), (7, 5), (TensorSource("t", (7, 5), (7, 5)),)),
    "one behind the other": WeightSpec(
        "w", ("a", "b", "c"), (2, 7, 5), (TensorSource("p", (7, 5), (1, 7, 5)), TensorSource("q", (7, 5), (1, 7, 5)))
    ),
    "joined in the middle": joined(num_kv_heads=2),
    "joined, with copies": joined(num_kv_heads=2, copies=2),
    "joined, with copies of the only one": joined(num_kv_heads=1, copies=4),
    "joined biases, with copies": BIASES,
}


@pytest.mark.parametrize("stored", [np.dtype(np.float32), BF16, np.dtype(np.float16)], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("served", [np.dtype(np.float32), BF16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", [1, 7, 25, 250, 2000])  # less than a run of the joined axis, and several of them
@pytest.mark.parametrize("spec", CASES.values(), ids=CASES)
def test_pieces_in_any_order_make_the_weight(spec: WeightSpec, size: int, stored: np.dtype, served: np.dtype):
    random = np.random.default_rng(0)
    tensors = {s.name: random.standard_normal(s.shape).astype(stored) for s in spec.sources}
    weight = np.zeros(spec.shape, served)
    for index, source in enumerate(spec.sources):
        values = tensors[source.name].reshape(-1)
        starts = list(range(0, values.size, size))
        random.shuffle(starts)
        for start in starts:
            TensorPlace(spec, index, weight).write(start, values[start : start + size])
    np.testing.assert_array_equal(weight, made_at_once(spec, tensors, served))


def write_all(assembly: Assembly) -> None:
    for name, tensor in TENSORS.items():
        assembly.reserve([name])
        assembly.write(name, 0, tensor.reshape(-1))


def test_weights_on_the_host_are_the_memory_that_a_cpu_uses():
    assembly = Assembly(SPECS, None)
    write_all(assembly)
    arrays = assembly.weights()
    weights = MESH.alias_host_arrays(arrays)
    assert [w.unsafe_buffer_pointer() for w in weights.values()] == [a.ctypes.data for a in arrays.values()]
    for spec in SPECS:
        np.testing.assert_array_equal(weights[spec.name], made_at_once(spec, TENSORS, DTYPE))


def test_a_weight_for_a_device_takes_memory_at_its_first_tensor_and_gives_it_back_once_placed():
    taken: list[int] = []
    given_back: list[int] = []
    assembly = Assembly(SPECS, MESH, on_placed=lambda array: given_back.append(array.nbytes))

    def allocate(num_bytes: int) -> np.ndarray:
        taken.append(num_bytes)
        return np.empty(num_bytes, np.uint8)

    for name, tensor in TENSORS.items():
        assembly.reserve([name], allocate)
        assert not assembly.lacks([name])
        assembly.reserve([name], pytest.fail)
        assembly.write(name, 0, tensor.reshape(-1))
        assert sum(given_back) <= sum(taken)
    assert sum(taken) == sum(given_back) == sum(weight.nbytes for weight in assembly.weights().values())
    for spec in SPECS:
        np.testing.assert_array_equal(assembly.weights()[spec.name], made_at_once(spec, TENSORS, DTYPE))


@pytest.mark.parametrize("spec", CASES.values(), ids=CASES)
def test_a_weight_is_placed_once_all_copies_of_all_tensors_have_come(spec: WeightSpec):
    tensors = {s.name: np.arange(np.prod(s.shape), dtype=np.float32).reshape(s.shape) for s in spec.sources}
    given_back: list[int] = []
    assembly = Assembly([spec], MESH, on_placed=lambda array: given_back.append(array.nbytes))
    assembly.reserve(list(tensors))
    for name, tensor in tensors.items():
        assert given_back == []
        assembly.write(name, 0, tensor.reshape(-1))
    [weight] = assembly.weights().values()
    assert given_back == [weight.nbytes]
    np.testing.assert_array_equal(weight, made_at_once(spec, tensors, DTYPE))


F32 = np.dtype(np.float32)


def plain(name: str, *shape: int) -> WeightSpec:
    axes = tuple(f"axis{number}" for number in range(len(shape)))
    return WeightSpec(name, axes, shape, (TensorSource(f"{name}.tensor", shape, shape),))


PLAIN = (plain("a", 3), plain("b", 64), plain("c", 65, 2), plain("d", 1))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_every_weight_begins_at_the_same_bank_and_none_overlaps_another(dtype: np.dtype):
    specs = tuple(replace(spec, dtype=dtype) for spec in PLAIN)
    weights = Assembly(specs, None).weights()
    assert list(weights) == ["a", "b", "c", "d"]
    places = [(weight.ctypes.data, weight.ctypes.data + weight.nbytes) for weight in weights.values()]
    assert {begin % 256 for begin, _ in places} == {192}
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))
    # The next place of the same bank is taken, and no later one.
    assert all(begin - end < 256 for (_, end), (begin, _) in itertools.pairwise(places))
    assert places[-1][1] - places[0][0] + 192 <= host_bytes(specs) < places[-1][1] - places[0][0] + 192 + 256
    assert [(weight.shape, weight.dtype) for weight in weights.values()] == [(spec.shape, dtype) for spec in PLAIN]


def test_a_tensor_of_no_weight_is_ignored_and_one_of_two_weights_is_in_both():
    source = TensorSource("shared", (4,), (4,))
    specs = tuple(WeightSpec(name, ("axis",), (4,), (source,)) for name in "ab")
    assembly = Assembly(specs, None)
    assert not assembly.lacks(["other", "shared"])
    assembly.write("other", 0, np.ones(4, np.float32))
    assembly.write("shared", 0, np.arange(4, dtype=np.float32))
    assert [weight.tolist() for weight in assembly.weights().values()] == [[0, 1, 2, 3]] * 2


def test_tensors_of_this_machine_become_weights_whatever_their_memory_order():
    tensors = {"c.tensor": np.arange(130, dtype=np.float32).reshape(2, 65).T}
    tensors |= {f"{name}.tensor": np.ones(size, np.float32) for name, size in (("a", 3), ("b", 64), ("d", 1))}
    weights = assemble_weights(iter(PLAIN), tensors, mesh=None)
    np.testing.assert_array_equal(weights["c"], tensors["c.tensor"])
    assert weights["b"].sum() == 64
    placed = assemble_weights(PLAIN, tensors, mesh=MESH)
    assert list(placed) == list(weights)
    for name, weight in placed.items():
        assert isinstance(weight, jax.Array)
        np.testing.assert_array_equal(weight, weights[name])
