"""Updates are added to whatever run of elements arrives, as if the whole weight were there."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.models.weight_spec import TensorSource, WeightSpec
from service.weights import low_rank
from service.weights.assembly import assemble_weights
from service.weights.low_rank import LowRankUpdate

RANDOM = np.random.RandomState(0)
WEIGHT = RANDOM.randn(7, 12).astype(np.float32)
UPDATE = LowRankUpdate(RANDOM.randn(3, 12).astype(np.float32), RANDOM.randn(7, 3).astype(np.float32))
SUM = WEIGHT + UPDATE.b @ UPDATE.a


@given(first=st.integers(0, 83), number=st.integers(1, 84), block=st.integers(1, 50))
def test_any_run_of_elements_gets_its_part(first: int, number: int, block: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(low_rank, "BLOCK_ELEMENTS", block)
        run = WEIGHT.reshape(-1)[first : first + number]
        np.testing.assert_allclose(UPDATE.applied_to(first, run), SUM.reshape(-1)[first : first + number], rtol=1e-5)


def test_a_transposed_update_is_that_of_the_transposed_weight():
    added = UPDATE.transposed.applied_to(0, np.ascontiguousarray(WEIGHT.T).reshape(-1))
    np.testing.assert_allclose(added.reshape(12, 7), SUM.T, rtol=1e-5)


def test_the_bound_holds_for_every_element_and_shows_an_overflow():
    assert np.abs(UPDATE.b @ UPDATE.a).max() <= UPDATE.bound
    huge = LowRankUpdate(np.full((2, 3), 1e38, np.float32), np.full((2, 2), 1e38, np.float32))
    assert not np.isfinite(huge.bound)


def test_a_narrow_weight_is_rounded_once_after_the_sum():
    source = TensorSource("t", WEIGHT.shape, WEIGHT.shape)
    spec = WeightSpec("w", ("row", "column"), WEIGHT.shape, (source,), dtype=np.dtype(ml_dtypes.bfloat16))
    stored = WEIGHT.astype(ml_dtypes.bfloat16)
    weights = assemble_weights([spec], {"t": stored}, mesh=None, updates={"t": UPDATE})
    expected = (stored.astype(np.float32) + UPDATE.b @ UPDATE.a).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(weights["w"].view(np.uint16), expected.view(np.uint16))
