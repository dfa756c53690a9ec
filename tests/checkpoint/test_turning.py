"""A weight made of pieces is the weight that numpy makes of whole tensors."""

import ml_dtypes
import numpy as np
import pytest

from service.checkpoint.turning import TensorPlace, Turn, turned_by_numpy, turned_by_xla
from service.models.weight_spec import TensorSource, WeightSpec
from tests.checkpoint.streamed import made_at_once

BF16 = np.dtype(ml_dtypes.bfloat16)
QKV = WeightSpec(
    "qkv",
    ("embed", "kv_head", "qkv_group", "head_dim"),
    (24, 2, 5, 4),
    tuple(
        TensorSource(name, shape=(2 * members * 4, 24), view=(24, 2, members, 4), is_transposed=True)
        for name, members in (("q", 3), ("k", 1), ("v", 1))
    ),
    concat_axis=2,
)


def copied(*, num_kv_heads: int, copies: int) -> WeightSpec:
    """Query, key and value with three query heads to a key-value head, of which several are one in the checkpoint."""
    heads = num_kv_heads * copies
    sources = (
        TensorSource("q", shape=(heads * 3 * 4, 24), view=(24, heads, 3, 4), is_transposed=True),
        TensorSource("k", shape=(num_kv_heads * 4, 24), view=(24, heads, 1, 4), is_transposed=True, copies=copies),
        TensorSource("v", shape=(num_kv_heads * 4, 24), view=(24, heads, 1, 4), is_transposed=True, copies=copies),
    )
    return WeightSpec("qkv", QKV.axes, (24, heads, 5, 4), sources, concat_axis=2)


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
    "turned": WeightSpec("w", ("a", "b"), (300, 5), (TensorSource("t", (5, 300), (300, 5), is_transposed=True),)),
    "turned, long rows": WeightSpec("w", ("a", "b"), (512, 70), (TensorSource("t", (70, 512), (512, 70), True),)),
    "joined in the middle": QKV,
    "joined, with copies": copied(num_kv_heads=2, copies=2),
    "joined, with copies of the only one": copied(num_kv_heads=1, copies=4),
    "joined, with copies, not turned": BIASES,
    "joined, not turned": WeightSpec(
        "bias",
        ("a", "b", "c"),
        (3, 4, 2),
        (TensorSource("q", (18,), (3, 3, 2)), TensorSource("k", (6,), (3, 1, 2))),
        concat_axis=1,
    ),
    "joined along what the columns became": WeightSpec(
        "w",
        ("a", "b", "c"),
        (4, 10, 6),
        (TensorSource("p", (6, 28), (4, 7, 6), True), TensorSource("q", (6, 12), (4, 3, 6), True)),
        concat_axis=1,
    ),
}


@pytest.mark.parametrize("stored", [np.dtype(np.float32), BF16, np.dtype(np.float16)], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("served", [np.dtype(np.float32), BF16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("turn", [turned_by_numpy, turned_by_xla], ids=["numpy", "xla"])
@pytest.mark.parametrize("rows", [3, 16])  # at a time: less than what a run of the joined axis holds, and several runs
@pytest.mark.parametrize("spec", CASES.values(), ids=CASES)
def test_pieces_in_any_order_make_the_weight(
    spec: WeightSpec, rows: int, turn: Turn, stored: np.dtype, served: np.dtype
):
    random = np.random.default_rng(0)
    tensors = {s.name: random.standard_normal(s.shape).astype(stored) for s in spec.sources}
    weight = np.zeros(spec.shape, served)
    for index, source in enumerate(spec.sources):
        values = tensors[source.name].reshape(-1)
        unit = source.shape[-1] if source.is_transposed else 1
        starts = list(range(0, values.size, rows * unit))
        random.shuffle(starts)
        for start in starts:
            TensorPlace(spec, index, weight).write(start, values[start : start + rows * unit], turn)
    np.testing.assert_array_equal(weight, made_at_once(spec, tensors, served))
