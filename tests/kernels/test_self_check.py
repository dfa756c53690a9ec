"""The check of an attention kernel: right ones pass in every format, and what a wrong one does is told."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.attention import Scoring
from service.kernels.blocks import BlockAttention
from service.kernels.reference import PagedReference
from service.kernels.self_check import Case, find_fault
from tests.kernels.emulated import INT8, RAGGED, TRITON

FLOAT32 = Case(np.dtype(np.float32), num_kv_heads=2, group=2, head_dim=32)
BFLOAT16 = replace(FLOAT32, dtype=np.dtype(jnp.bfloat16))


def in_grid(*values):
    return pytest.param(*values, marks=pytest.mark.grid)


@pytest.mark.parametrize(
    ("kernel", "case"),
    [
        (TRITON, replace(BFLOAT16, has_sinks=True)),
        in_grid(TRITON, replace(BFLOAT16, cached_dtype=np.dtype(np.int8), scoring=Scoring(0.2, sliding_window=9))),
        in_grid(TRITON, replace(BFLOAT16, looks_ahead=True, scoring=Scoring(0.2, sliding_window=33))),
        in_grid(RAGGED, BFLOAT16),
        in_grid(INT8, replace(BFLOAT16, cached_dtype=np.dtype(np.int8), page_size=128)),
        (BlockAttention(), FLOAT32),
        (BlockAttention(), replace(FLOAT32, looks_ahead=True, scoring=Scoring(0.2, sliding_window=33))),
        (PagedReference(), BFLOAT16),
    ],
)
def test_a_right_kernel_has_no_fault(kernel, case):
    assert find_fault(kernel, case) is None


@dataclass(frozen=True)
class NarrowSight(PagedReference):
    """A kernel that does not see the first positions of the longer contexts."""

    def attend(self, query, new_keys, new_values, cache, paging, **options):
        scoring = replace(options.pop("scoring"), sliding_window=40)
        return super().attend(query, new_keys, new_values, cache, paging, scoring=scoring, **options)


@dataclass(frozen=True)
class WrongDecode(PagedReference):
    """A kernel that is wrong for single tokens alone, as one kernel of two would be."""

    def attend(self, query, *others, **options):
        attended, cache = super().attend(query, *others, **options)
        return (attended * 1.2 if query.shape[1] == 1 else attended), cache


@dataclass(frozen=True)
class NotANumber(PagedReference):
    """A kernel whose first output is not a number."""

    def attend(self, query, *others, **options):
        attended, cache = super().attend(query, *others, **options)
        return attended.at[0, 0, 0, 0, 0].set(jnp.nan), cache


@pytest.mark.parametrize(("kernel", "is_nan"), [(NarrowSight(), False), (WrongDecode(), False), (NotANumber(), True)])
@pytest.mark.parametrize("case", [FLOAT32, BFLOAT16])
def test_how_far_a_wrong_kernel_is_from_the_reference_is_told(kernel, is_nan, case):
    fault = find_fault(kernel, case)
    assert fault is not None
    difference, _, tolerance = fault.removeprefix("differs from the reference by ").partition(", more than ")
    assert float(tolerance) == pytest.approx(case.tolerance, rel=0.01)
    assert np.isnan(float(difference)) == is_nan


@dataclass(frozen=True)
class Causal(PagedReference):
    """A kernel whose tokens see nothing after their own."""

    def attend(self, query, new_keys, new_values, cache, paging, **options):
        return super().attend(query, new_keys, new_values, cache, paging._replace(ahead=None), **options)


def test_a_kernel_that_does_not_look_ahead_is_found_where_tokens_do():
    assert find_fault(Causal(), FLOAT32) is None
    assert "differs from the reference" in find_fault(Causal(), replace(FLOAT32, looks_ahead=True))


@dataclass(frozen=True)
class Failing(PagedReference):
    """A kernel that does not compile."""

    def attend(self, *operands, **options):
        raise NotImplementedError("no such instruction")


def test_why_a_kernel_fails_is_told():
    assert find_fault(Failing(), FLOAT32) == "failed: NotImplementedError: no such instruction"
