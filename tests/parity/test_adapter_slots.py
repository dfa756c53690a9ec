"""Adapters side by side: each sequence has the logits of its own adapter, and those without one the base model's."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.checkpoint.adapters.host import host_adapter
from service.checkpoint.adapters.locate import locate_adapter
from service.checkpoint.adapters.read import read_updates
from service.checkpoint.limits import LoadLimits
from service.device.mesh import DeviceMesh
from service.device.native.library import native_code
from service.engine.request import Adapter
from service.kernels.blocks import BlockAttention
from service.kernels.paging import Paging
from service.kernels.products.linear import PLAIN, SPLIT, Products
from service.models.adapted import adapted_tensors
from service.models.adapter_arrays import AdapterShapes
from service.models.decoder import Decoder
from service.models.decoder_weights import decoder_weight_specs
from service.models.quantization import Quantization
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from service.storage.location import LocalLocation, Location
from service.weights.assembly import assemble_weights
from service.weights.low_rank import LowRankUpdate
from tests.engine.conftest import start_engine  # noqa: F401  # pyright: ignore[reportUnusedImport]
from tests.models.whole_step import WholeStep
from tests.parity.adapter_cases import ADAPTER_CASES, AdapterCase
from tests.parity.family_cases import FAMILY_CASES
from tests.parity.test_quantized import in_float32
from tests.parity.test_reference_logits import LAYOUT, PAGES, bare_tensors
from tests.tolerances import SAME_MODEL_ATOL, SAME_QUANTIZED_MODEL_ATOL

NATIVE = Products(SPLIT.num_splits, native_code())
SLOTS = AdapterShapes(num_slots=2, rank=8)
FLOAT32 = np.dtype(np.float32)

ways = pytest.mark.parametrize(
    "products",
    [
        pytest.param(PLAIN, id="plain", marks=pytest.mark.grid),
        pytest.param(
            NATIVE,
            id="native",
            marks=pytest.mark.skipif(not native_code().has_products, reason="there are no products in C++ here"),
        ),
    ],
)


def open_local(location: Location) -> LocalSource:
    assert isinstance(location, LocalLocation)
    return LocalSource(location)


def mesh() -> DeviceMesh:
    return DeviceMesh((jax.devices()[0],))


def base_weights(model: Decoder, tensors: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    assembled = assemble_weights(decoder_weight_specs(model.config), tensors, mesh=mesh())
    return {name: jnp.asarray(array) for name, array in assembled.items()}


def laid_out(name: str, updates: dict[str, LowRankUpdate], model: Decoder) -> Adapter:
    specs = decoder_weight_specs(model.config)
    assert model.adapters is not None
    groups = model.layer_groups
    return host_adapter(name, name.encode(), updates, specs=specs, groups=groups, shapes=model.adapters, dtype=FLOAT32)


class Pair:
    """A sequence with an adapter beside one without, in a model with slots."""

    def __init__(self, model: Decoder, token_ids: np.ndarray) -> None:
        self._step = WholeStep(model)
        self._token_ids = jnp.asarray(np.stack([token_ids, token_ids]))
        pages = jnp.asarray(PAGES.reshape(2, -1))
        self._paging = Paging(jnp.zeros(2, jnp.int32), jnp.full(2, len(token_ids)), pages)
        self._adapters = None if model.adapters is None else jnp.repeat(jnp.array([1, -1]), len(token_ids))

    def logits(self, weights: dict[str, jax.Array]) -> np.ndarray:
        """Return the logits of both."""
        caches = self._step.empty_caches(LAYOUT)
        return np.asarray(self._step(weights, caches, self._token_ids, self._paging, self._adapters)[0])


def with_adapter(weights: dict[str, jax.Array], model: Decoder, adapter: Adapter) -> dict[str, jax.Array]:
    """Return weights with an adapter in slot 1; in the other slot, products are infinite, which must not show."""
    slots = {
        name: jnp.stack([jnp.full_like(array, 3e38), jnp.asarray(array)])
        for group, arrays in zip(model.layer_groups, adapter.arrays, strict=True)
        for name, array in zip(group.adapters, arrays, strict=True)
    }
    return {**weights, **slots}


@ways
@pytest.mark.parametrize("case", ADAPTER_CASES, ids=lambda case: case.name)
def test_logits_of_a_slot_equal_those_of_pefts_merge(case: AdapterCase, products: Products, tmp_path: Path):
    config = read_config("m", case.model.hub_config)
    model = Decoder(config, products=products, adapters=SLOTS)
    located = locate_adapter(str(case.save(tmp_path)), open_local)
    updates = read_updates(located, decoder_weight_specs(config), LoadLimits(None, Progress(), 1 << 20))
    adapter = laid_out("a", updates, model)
    weights = base_weights(model, bare_tensors(case.model.model_type, case.model.tensors()))
    token_ids = case.model.token_ids[:24]
    adapted, plain = Pair(model, token_ids).logits(with_adapter(weights, model, adapter))
    np.testing.assert_allclose(adapted, case.reference_logits()[: len(token_ids)], atol=SAME_MODEL_ATOL, rtol=0)
    np.testing.assert_array_equal(plain, Pair(Decoder(config, products=products), token_ids).logits(weights)[1])


@pytest.mark.parametrize("kv_dtype", [pytest.param(FLOAT32, marks=pytest.mark.grid), np.dtype(np.int8)], ids=str)
def test_a_base_in_eight_bits_is_as_exact_with_an_adapter_beside_it(
    kv_dtype: np.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    case = next(case for case in ADAPTER_CASES if case.name == "all_linear")
    config, token_ids = read_config("m", case.model.hub_config), case.model.token_ids[:12]
    parts = (BlockAttention(), NATIVE, Quantization.INT8, None, kv_dtype)
    model, base = Decoder(config, FLOAT32, *parts, adapters=SLOTS), Decoder(config, FLOAT32, *parts)
    located = locate_adapter(str(case.save(tmp_path)), open_local)
    updates = read_updates(located, decoder_weight_specs(config), LoadLimits(None, Progress(), 1 << 20))
    weights = assemble_weights(base.weight_specs(), case.model.tensors(), mesh=mesh())
    weights = with_adapter(dict(weights), model, laid_out("a", updates, model))
    adapted, plain = Pair(model, token_ids).logits(weights)
    np.testing.assert_array_equal(plain, Pair(base, token_ids).logits(weights)[1])
    # The sums of quantized products are exact in float32, and so are those that this computes.
    monkeypatch.setattr("service.models.multiply.linear", in_float32)
    expected, _ = Pair(model, token_ids).logits(weights)
    np.testing.assert_allclose(adapted, expected, atol=SAME_QUANTIZED_MODEL_ATOL, rtol=0)
    assert np.abs(adapted - plain).max() > 0.1


@pytest.mark.parametrize(
    "name",
    [
        "lfm2",
        "qwen3_5",
        *(
            pytest.param(name, marks=pytest.mark.grid)
            for name in ("hero", "qwen3_next", "olmo_hybrid", "bamba", "falcon_h1", "nemotron_h")
        ),
    ],
)
def test_an_adapter_of_a_recurrent_layer_is_what_its_merge_is(name: str):
    case = next(case for case in FAMILY_CASES if case.name == name)
    config, token_ids, tensors = read_config("m", case.hub_config), case.token_ids[:12], case.tensors()
    model = Decoder(config, adapters=SLOTS)
    random, updates, merged = np.random.RandomState(3), dict[str, LowRankUpdate](), dict(tensors)
    for tensor in adapted_tensors(decoder_weight_specs(config)):
        rows, columns = tensors[tensor].shape
        first, second = random.randn(4, columns).astype(np.float32), random.randn(rows, 4).astype(np.float32) * 0.03
        updates[tensor] = LowRankUpdate(first, second)
        merged[tensor] = tensors[tensor] + second @ first
    assert any(
        name.endswith(
            (
                "conv.in_proj.weight",
                "attn.k_proj.weight",
                "z.weight",
                "linear_attn.g_proj.weight",
                "mamba.in_proj.weight",
                "mixer.in_proj.weight",
            )
        )
        for name in updates
    )
    weights = with_adapter(base_weights(model, tensors), model, laid_out("a", updates, model))
    adapted, plain = Pair(model, token_ids).logits(weights)
    alone = Decoder(config)
    expected, _ = Pair(alone, token_ids).logits(base_weights(model, merged))
    np.testing.assert_allclose(adapted, expected, atol=SAME_MODEL_ATOL, rtol=0)
    np.testing.assert_array_equal(plain, Pair(alone, token_ids).logits(base_weights(model, tensors))[1])
    assert np.abs(adapted - plain).max() > 0.1
