"""On a CPU weights stay in the dtype in which they were saved, if the native code multiplies by them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.bundles import key
from service.checkpoint.discover import LocatedCheckpoint, locate
from service.checkpoint.layout import LevanterLayout
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.device.native.library import NativeCode, native_code
from service.kernels.cache_layout import CacheLayout
from service.kernels.limits import skips_padding
from service.kernels.paging import Paging
from service.kernels.reference import PagedReference
from service.observability.progress import Progress
from service.settings import Settings
from service.start import dtype
from service.start.kinds.engine_spec import EngineSpec, choose_engine_spec
from service.storage.local import LocalSource
from tests.models.whole_step import WholeStep
from tests.served import DEMO  # saved in bfloat16

pytestmark = pytest.mark.skipif(not native_code().has_products, reason="no native products")


@pytest.fixture(scope="module")
def located() -> LocatedCheckpoint:
    return locate(str(DEMO), LocalSource)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that multiplies bfloat16 no faster than float32."""
    without = {NativeCode.AMX: NativeCode.AVX512, NativeCode.AVX512_BF16: NativeCode.AVX512}
    monkeypatch.setattr(dtype, "native_code", lambda: without.get(native_code(), native_code()))


def plan(located: LocatedCheckpoint, **settings: str) -> EngineSpec:
    return choose_engine_spec(Settings(**settings), located, jax.devices()[:1])


def dtypes(spec: EngineSpec) -> dict[str, str]:
    return {entry["name"]: entry["dtype"] for entry in spec.recipe()}


def logits(located: LocatedCheckpoint, spec: EngineSpec) -> np.ndarray:
    weights = load_on_host(located, spec.specs, LoadLimits(None, Progress(), 2**26)).weights
    step = WholeStep(dataclasses.replace(spec.model(), kernel=PagedReference()))
    layout = CacheLayout(num_pages=4, page_size=4)
    paging = Paging(*(jnp.array(each) for each in ([0], [5], [[0, 1, 2, 3]])))
    arrays = {name: jnp.asarray(weight) for name, weight in weights.items()}
    made, _ = step(arrays, step.empty_caches(layout), jnp.array([[3, 1, 4, 1, 5]]), paging)
    return np.asarray(made)


@pytest.mark.usefixtures("exact")
def test_products_stay_in_bfloat16_and_the_rest_is_float32(located: LocatedCheckpoint):
    stored, wide = plan(located), plan(located, dtype="float32")
    assert stored.number_formats == {**wide.number_formats, "weight_dtype": "bfloat16"}
    found = dtypes(stored)
    assert {found[name] for name in ("embed", "layers.0.qkv", "layers.0.down")} == {"bfloat16"}
    assert {found[name] for name in ("final_norm", "layers.0.mlp_norm")} == {"float32"}
    assert set(dtypes(wide).values()) == {"float32"}
    assert stored.weights_bytes < wide.weights_bytes * 0.51
    assert stored.key.differences(wide.key.inputs) == ["weight_dtype"]


@pytest.mark.skipif(not native_code().rounds_tokens, reason="this processor multiplies no bfloat16")
def test_activations_are_rounded_for_products_alone(located: LocatedCheckpoint):
    rounded, asked, wide = plan(located), plan(located, dtype="bfloat16"), plan(located, dtype="float32")
    narrow = dict.fromkeys(("kv_dtype", "product_dtype", "weight_dtype"), "bfloat16")
    assert rounded.number_formats == asked.number_formats == {**wide.number_formats, **narrow}
    assert set(rounded.key.differences(wide.key.inputs)) == set(narrow)
    assert not rounded.key.differences(asked.key.inputs)
    assert plan(located, kv_dtype="int8").number_formats["kv_dtype"] == "int8"
    assert set(dtypes(plan(located, quantization="int8")).values()) == {"int8", "float32"}
    of_levanter = dataclasses.replace(located, layout=LevanterLayout(None, "", ()))
    assert dtypes(plan(of_levanter, dtype="bfloat16")) == dtypes(rounded)


@pytest.mark.skipif(not native_code().rounds_tokens, reason="this processor multiplies no bfloat16")
def test_a_bundle_of_a_processor_with_other_instructions_is_another_one(located: LocatedCheckpoint, monkeypatch):
    here = plan(located)
    for module in (dtype, key):
        monkeypatch.setattr(module, "native_code", lambda: NativeCode.AVX512)
    assert {"native_code", "product_dtype", "kv_dtype"} <= set(plan(located).key.differences(here.key.inputs))


def test_a_dtype_that_is_asked_for_and_weights_of_levanter_are_as_before(located: LocatedCheckpoint):
    of_levanter = dataclasses.replace(located, layout=LevanterLayout(None, "", ()))
    assert set(dtypes(plan(of_levanter)).values()) == {"float32"}
    unnamed = {name: value for name, value in located.hub_config.items() if name not in ("dtype", "torch_dtype")}
    assert set(dtypes(plan(dataclasses.replace(located, hub_config=unnamed))).values()) == {"float32"}
    assert set(dtypes(plan(located, quantization="int8")).values()) == {"int8", "float32"}


@pytest.mark.usefixtures("exact")
def test_the_logits_are_those_of_weights_in_float32(located: LocatedCheckpoint):
    np.testing.assert_array_equal(logits(located, plan(located)), logits(located, plan(located, dtype="float32")))


@pytest.mark.skipif(not native_code().rounds_tokens, reason="this processor multiplies no bfloat16")
def test_rounding_changes_logits_by_less_than_a_thousandth_of_the_largest(located: LocatedCheckpoint):
    wide, rounded = logits(located, plan(located, dtype="float32")), logits(located, plan(located))
    error = np.sqrt(np.mean((rounded - wide) ** 2))
    assert 0 < error < 2**-10 * np.abs(wide).max()


def test_where_products_compute_padding_too_there_are_more_sizes_of_steps(located: LocatedCheckpoint):
    plain, int8, fp8 = plan(located), plan(located, quantization="int8"), plan(located, quantization="fp8")
    assert (fp8.shapes.row_counts, fp8.shapes.slot_counts) == ((1, 4, 8), (1, 4, 8, 16))
    for spec, stored in ((plain, "bfloat16"), (int8, "int8")):
        assert spec.shapes.skips_padding == skips_padding(native_code(), stored)
        if spec.shapes.skips_padding:
            assert (spec.shapes.row_counts, spec.shapes.slot_counts) == ((1, 8), (1, 16))
