"""Rows in 8 bits are the nearest to what was stored, however their elements arrive, or are refused."""

import re

import jax
import ml_dtypes
import numpy as np
import pytest

from service.device.mesh import DeviceMesh
from service.errors import UnquantizableWeights
from service.models.quantization import Quantization, quantized_specs
from service.models.weight_spec import TensorSource, WeightSpec
from service.weights.assembly import Assembly, assemble_weights
from service.weights.quantization import BLOCK_ELEMENTS, UnquantizableRow, quantize_groups, quantize_rows
from tests.weights.test_assembly import joined

MESH = DeviceMesh((jax.devices()[0],))
BF16, INT8, FP8 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.int8), np.dtype(ml_dtypes.float8_e4m3fn)
RANDOM = np.random.default_rng(0)


def product(name: str, *shape: int, num_in_axes: int = 1) -> WeightSpec:
    axes = tuple(f"axis{number}" for number in range(len(shape)))
    return WeightSpec(name, axes, shape, (TensorSource(f"{name}.tensor", shape, shape),), num_in_axes=num_in_axes)


def int8_of(*specs: WeightSpec) -> tuple[WeightSpec, ...]:
    return quantized_specs(specs, Quantization.INT8)


@pytest.mark.parametrize("stored", [np.dtype(np.float32), BF16, np.dtype(np.float16)], ids=str)
def test_a_value_is_at_most_half_a_scale_from_what_was_stored(stored: np.dtype):
    rows = (RANDOM.standard_normal((50, 96)) * RANDOM.uniform(0.01, 10, (50, 1))).astype(stored)
    values, scales = quantize_rows(rows)
    wide = rows.astype(np.float32)
    assert (values.dtype, scales.dtype) == (np.int8, np.float32)
    np.testing.assert_allclose(scales, np.abs(wide).max(axis=1) / 127, rtol=1e-6)
    assert (np.abs(values * scales[:, None] - wide) <= scales[:, None] * 0.50001).all()
    assert np.abs(values).max(axis=1).tolist() == [127] * 50


@pytest.mark.parametrize("stored", [np.dtype(np.float32), BF16], ids=str)
def test_an_fp8_value_is_the_nearest_to_what_was_stored(stored: np.dtype):
    spread = RANDOM.standard_normal((50, 96)) * 10.0 ** RANDOM.uniform(-5, 0, (50, 96))
    rows = (spread * RANDOM.uniform(0.01, 10, (50, 1))).astype(stored)
    values, scales = quantize_rows(rows, dtype=FP8)
    wide = rows.astype(np.float32)
    np.testing.assert_allclose(scales, np.abs(wide).max(axis=1) / 448, rtol=1e-6)
    expected = (wide * (1 / scales)[:, None]).clip(-448, 448).astype(FP8).astype(np.float32)
    made = values.astype(np.float32)
    # A product with the inverse and a quotient differ in the last bit, which decides between two as near.
    is_same = made == expected
    assert is_same.mean() > 0.999
    assert (np.abs(made - expected)[~is_same] <= np.abs(expected[~is_same]) / 8 + 2**-9).all()
    assert (np.abs(made * scales[:, None] - wide) <= np.abs(wide) / 16 + scales[:, None] * 2**-10 * 1.001).all()


def test_every_fp8_number_and_what_lies_between_two_is_rounded_as_ml_dtypes_does():
    numbers = np.arange(256, dtype=np.uint8).view(FP8).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    between = (numbers[1:] + numbers[:-1]) / 2
    # With 448 in it, a row has the scale 1.
    row = np.concatenate([numbers, between, between * 0.999, between * 1.001]).astype(np.float32)
    values, scales = quantize_rows(row[None], dtype=FP8)
    assert scales.tolist() == [1]
    np.testing.assert_array_equal(values[0].astype(np.float32), row.astype(FP8).astype(np.float32))
    assert not (values.view(np.uint8) == 0x80).any()  # no -0


def test_an_outlier_of_ten_thousand_is_kept_in_fp8_with_the_others():
    rows = RANDOM.standard_normal((3, 64)).astype(np.float32)
    rows[1, 7] = 1e4
    values, scales = quantize_rows(rows, dtype=FP8)
    np.testing.assert_allclose(values.astype(np.float32) * scales[:, None], rows, rtol=0.07, atol=0.04)
    rows[1, 7] = 1e8
    with pytest.raises(UnquantizableRow, match=r"row 1 .* more than half of its 64 nonzero values"):
        quantize_rows(rows, dtype=FP8)


@pytest.mark.parametrize("dtype", [INT8, FP8], ids=str)
def test_rows_of_zeros_and_of_less_than_float32_multiplies_are_exactly_zero(dtype: np.dtype):
    values, scales = quantize_rows(np.array([[0, -0.0], [1e-40, -1e-39], [1, 0]], np.float32), dtype=dtype)
    assert values.tolist() == [[0, 0], [0, 0], [127 if dtype == INT8 else 448, 0]]
    assert (scales > 0).all()


@pytest.mark.parametrize("dtype", [INT8, FP8], ids=str)
def test_the_largest_and_smallest_numbers_of_float32_are_kept(dtype: np.dtype):
    rows = np.array([[3.4e38, -3.4e38, 1.7e38], [4e-36, -4e-36, 2e-36]], np.float32)
    values, scales = quantize_rows(rows, dtype=dtype)
    np.testing.assert_allclose(values.astype(np.float32) * scales[:, None], rows, rtol=0.01)


@pytest.mark.parametrize("dtype", [INT8, FP8], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_a_row_that_is_not_finite_is_refused(bad: float, dtype: np.dtype):
    rows = np.ones((4, 8), np.float32)
    rows[2, 5] = bad
    with pytest.raises(UnquantizableRow, match="row 12 has a value that is NaN or infinite"):
        quantize_rows(rows, 10, dtype)


def test_a_row_that_one_value_would_round_to_zero_is_refused_and_a_sparse_one_is_not():
    rows = RANDOM.standard_normal((3, 64)).astype(np.float32)
    rows[1, 7] = 1e4
    with pytest.raises(UnquantizableRow, match=r"row 1 .* more than half of its 64 nonzero values"):
        quantize_rows(rows)
    sparse = np.zeros((1, 64), np.float32)
    sparse[0, :2] = (1, 0.9)
    assert quantize_rows(sparse)[0][0, :3].tolist() == [127, 114, 0]


SPECS = {
    "plain": product("w", 7, 5),
    "joined in the middle": joined(num_kv_heads=2),
    "joined, with copies": joined(num_kv_heads=2, copies=2),
    "rows of three axes": product("w", 6, 2, 3, 4, num_in_axes=3),
}


@pytest.mark.parametrize("size", [1, 7, 25, 2000])  # less than a row, more, and more than the tensor
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_pieces_in_any_order_make_the_rows_of_whole_tensors(spec: WeightSpec, size: int):
    [weight, scale] = int8_of(spec)
    tensors = {s.name: RANDOM.standard_normal(s.shape).astype(BF16) for s in spec.sources}
    pieces = [(name, start) for name, tensor in tensors.items() for start in range(0, tensor.size, size)]
    RANDOM.shuffle(pieces)
    assembly = Assembly([weight, scale], None)
    for name, start in pieces:
        assembly.write(str(name), int(start), tensors[name].reshape(-1)[int(start) : int(start) + size])
    made = assembly.weights()
    wide = assemble_weights([spec], tensors, mesh=None)[spec.name]
    rows = np.asarray(wide).reshape(-1, np.prod(spec.shape[-spec.num_in_axes :]))
    values, scales = quantize_rows(rows)
    np.testing.assert_array_equal(made[weight.name], values.reshape(spec.shape))
    np.testing.assert_array_equal(made[scale.name], scales.reshape(spec.shape[: -spec.num_in_axes]))


def in_groups(rows: np.ndarray) -> np.ndarray:
    """Return rows in 4 bits as their integers, scales and zero points stand for them."""
    values, scale, zero = (part.astype(np.float32) for part in quantize_groups(rows))
    groups = values.reshape(*scale.shape, -1)
    return ((groups - zero[..., None]) * scale[..., None]).reshape(rows.shape)


@pytest.mark.parametrize("stored", [np.dtype(np.float32), BF16, np.dtype(np.float16)], ids=str)
def test_groups_in_4_bits_lose_less_than_by_rounding_to_their_whole_range(stored: np.dtype):
    rows = (RANDOM.standard_t(5, (64, 96)) * RANDOM.uniform(0.01, 10, (64, 1)) + 0.1).astype(stored)
    values, scale, zero = quantize_groups(rows)
    assert (values.shape, scale.shape, zero.shape) == ((64, 96), (64, 3), (64, 3))
    assert (str(values.dtype), scale.dtype, zero.dtype) == ("int4", BF16, BF16)
    wide = rows.astype(np.float32)
    groups = wide.reshape(64, 3, 32)
    lowest, step = groups.min(-1, keepdims=True), np.ptp(groups, -1, keepdims=True) / 15
    nearest = np.rint((groups - lowest) / step) * step + lowest
    lost = ((in_groups(rows) - wide) ** 2).reshape(groups.shape).sum(-1)
    assert lost.sum() < 0.88 * ((nearest - groups) ** 2).sum()
    # Each value is the nearest of those that the scale and the zero point of its group stand for.
    wanted = groups / scale.astype(np.float32)[..., None] + zero.astype(np.float32)[..., None]
    made = values.astype(np.float32).reshape(groups.shape)
    assert (np.abs(made - np.clip(wanted, -8, 7)) <= 0.5001).all()


@pytest.mark.parametrize("row", [np.zeros(32), np.full(32, 3), np.full(32, -1e-30), np.full(32, 1e-40)], ids=str)
def test_groups_of_one_value_keep_it(row: np.ndarray):
    np.testing.assert_allclose(in_groups(row.astype(np.float32)[None])[0], row, rtol=2**-8, atol=1e-38)


@pytest.mark.parametrize(
    ("row", "steps"),
    [
        (np.linspace(1, 1.5, 32), 1),
        (np.linspace(100, 101, 32), 105),  # of which a zero point in bfloat16 could not be told: from 0 on
        (np.linspace(-1e18, 1e18, 32), 1),
        (np.linspace(-1e-30, 1e-30, 32), 1),
        (np.append(np.zeros(31), 50), 1),
    ],
    ids=str,
)
def test_a_value_in_4_bits_is_less_than_a_step_from_what_was_stored(row: np.ndarray, steps: int):
    row = row.astype(np.float32)
    assert (np.abs(in_groups(row[None])[0] - row) <= steps * np.ptp(row) / 15).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30], ids=str)
def test_a_row_that_4_bits_cannot_hold_is_refused(bad: float):
    rows = np.ones((4, 64), np.float32)
    rows[2, 40] = bad
    with pytest.raises(UnquantizableRow, match="row 12 has a value that is NaN, infinite or above"):
        quantize_groups(rows, 10)


def test_weights_of_layers_in_whole_groups_become_4_bits_and_others_rows_of_int8():
    experts = WeightSpec(
        "layers.0.up", ("expert", "mlp", "embed"), (2, 8, 64), product("x", 16, 64).sources, num_in_axes=1
    )
    specs = [product("layers.0.down", 8, 64), product("layers.0.odd", 8, 40), product("embed", 8, 64), experts]
    made = {spec.name: str(spec.dtype) for spec in quantized_specs(specs, Quantization.INT4)}
    of_groups = {"layers.0.down": "int4", "layers.0.down.scale": "bfloat16", "layers.0.down.zero": "bfloat16"}
    of_rows = dict.fromkeys(("layers.0.odd", "embed", "layers.0.up"), "int8")
    assert made == {**of_groups, **of_rows, **{f"{name}.scale": "float32" for name in of_rows}}


@pytest.mark.parametrize("size", [1, 31, 500, 4000])
@pytest.mark.parametrize("copies", [1, 2])
def test_pieces_in_any_order_make_the_groups_of_whole_tensors(copies: int, size: int):
    sources = (
        TensorSource("q", (2 * copies * 3 * 4, 64), (2 * copies, 3, 4, 64)),
        TensorSource("k", (2 * 4, 64), (2 * copies, 1, 4, 64), copies),
    )
    axes, shape = ("kv_head", "qkv_group", "head_dim", "embed"), (2 * copies, 4, 4, 64)
    spec = WeightSpec("layers.0.qkv", axes, shape, sources, concat_axis=1, num_in_axes=1)
    specs = quantized_specs([spec], Quantization.INT4)
    tensors = {s.name: RANDOM.standard_normal(s.shape).astype(BF16) for s in spec.sources}
    pieces = [(name, start) for name, tensor in tensors.items() for start in range(0, tensor.size, size)]
    RANDOM.shuffle(pieces)
    assembly = Assembly(specs, None)
    for name, start in pieces:
        assembly.write(str(name), int(start), tensors[name].reshape(-1)[int(start) : int(start) + size])
    made = assembly.weights()
    wide = np.asarray(assemble_weights([spec], tensors, mesh=None)[spec.name])
    for each, expected in zip(specs, quantize_groups(wide.reshape(-1, 64)), strict=True):
        np.testing.assert_array_equal(made[each.name].reshape(expected.shape), expected)


def test_a_row_of_a_later_block_is_named_by_its_number_in_the_tensor():
    tensor = np.ones((4, BLOCK_ELEMENTS // 2), np.float32)
    tensor[3, 9] = np.nan
    with pytest.raises(UnquantizableWeights, match=re.escape("gs://b/m: w.tensor: row 3 ")) as error:
        assemble_weights(int8_of(product("w", *tensor.shape)), {"w.tensor": tensor}, mesh=MESH, uri="gs://b/m")
    assert error.value.tensor == "w.tensor"
    with pytest.raises(UnquantizableWeights, match=r"^memory: w\.tensor: row 3 "):
        assemble_weights(int8_of(product("w", *tensor.shape)), {"w.tensor": tensor}, mesh=MESH)


def test_a_weight_for_a_device_takes_its_bytes_and_those_of_its_scales_and_gives_them_back_together():
    taken: list[int] = []
    given_back: list[int] = []
    specs = int8_of(product("w", 8, 16))
    assembly = Assembly(specs, MESH, on_placed=lambda array: given_back.append(array.nbytes))

    def allocate(num_bytes: int) -> np.ndarray:
        taken.append(num_bytes)
        return np.empty(num_bytes, np.uint8)

    assembly.reserve(["w.tensor"], allocate)
    assert taken == [8 * 16, 8 * 4]
    assert not assembly.lacks(["w.tensor"])
    assembly.write("w.tensor", 0, np.ones(100, np.float32))
    assert given_back == []
    assembly.write("w.tensor", 100, np.ones(28, np.float32))
    assert given_back == [8 * 16, 8 * 4]
    assert [(name, str(weight.dtype)) for name, weight in assembly.weights().items()] == [
        ("w", "int8"),
        ("w.scale", "float32"),
    ]
