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
from service.kernels.paging import Paging
from service.kernels.products.linear import PLAIN, SPLIT, Products
from service.models.adapter_arrays import AdapterShapes
from service.models.decoder import Decoder
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from service.storage.location import LocalLocation, Location
from service.weights.assembly import assemble_weights
from service.weights.low_rank import LowRankUpdate
from tests.engine.conftest import start_engine  # noqa: F401  # pyright: ignore[reportUnusedImport]
from tests.models.whole_step import WholeStep
from tests.parity.adapter_cases import ADAPTER_CASES, AdapterCase
from tests.parity.test_reference_logits import LAYOUT, PAGES, bare_tensors
from tests.tolerances import SAME_MODEL_ATOL

NATIVE = Products(SPLIT.num_splits, native_code())
SLOTS = AdapterShapes(num_slots=2, rank=8)
FLOAT32 = np.dtype(np.float32)

ways = pytest.mark.parametrize(
    "products",
    [
        pytest.param(PLAIN, id="plain"),
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


@ways
@pytest.mark.parametrize("case", ADAPTER_CASES, ids=lambda case: case.name)
def test_logits_of_a_slot_equal_those_of_pefts_merge(case: AdapterCase, products: Products, tmp_path: Path):
    config = read_config("m", case.model.hub_config)
    model = Decoder(config, products=products, adapters=SLOTS)
    located = locate_adapter(str(case.save(tmp_path)), open_local)
    updates = read_updates(located, decoder_weight_specs(config), LoadLimits(None, Progress(), 1 << 20))
    adapter = laid_out("a", updates, model)
    weights = base_weights(model, bare_tensors(case.model.model_type, case.model.tensors()))
    for group, arrays in zip(model.layer_groups, adapter.arrays, strict=True):
        for name, array in zip(group.adapters, arrays, strict=True):
            # In the other slot, products are infinite: of nobody's tokens, they must not show.
            weights[name] = jnp.stack([jnp.full_like(array, 3e38), jnp.asarray(array)])
    step, token_ids = WholeStep(model), case.model.token_ids[:24]
    pages = jnp.asarray(PAGES.reshape(2, -1))
    paging = Paging(jnp.zeros(2, jnp.int32), jnp.full(2, len(token_ids)), pages)
    adapters = jnp.repeat(jnp.array([1, -1]), len(token_ids))
    pair = jnp.asarray(np.stack([token_ids, token_ids]))
    (adapted, plain), _ = step(weights, step.empty_caches(LAYOUT), pair, paging, adapters)
    np.testing.assert_allclose(adapted, case.reference_logits()[: len(token_ids)], atol=SAME_MODEL_ATOL, rtol=0)

    base = WholeStep(Decoder(config, products=products))
    (_, alone), _ = base(weights, base.empty_caches(LAYOUT), pair, paging)
    np.testing.assert_array_equal(plain, alone)
