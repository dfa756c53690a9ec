"""A step with sequences that decode and rows of prompts computes what steps of one sequence compute."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.device.native.library import native_code
from service.kernels.blocks import BlockAttention
from service.kernels.cache_layout import CacheLayout
from service.kernels.gpu import TritonAttention
from service.kernels.native_pages import NativePagedAttention
from service.kernels.paging import Paging, Regions
from service.kernels.products.linear import PLAIN, Products
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.interface import LayerGroupInputs
from service.models.registry import read_config
from tests.parity.cases import CASES
from tests.tolerances import SAME_TOKENS_OTHER_STEPS_ATOL

CONFIG = read_config("test", next(case.hub_config for case in CASES if case.name == "mistral_window"))
LAYOUT = CacheLayout(num_pages=16, page_size=4)
ROW = 4
RUNNING, PROMPT = (3, 1, 4, 1, 5, 9), (2, 6, 5, 3, 5, 8, 9, 7, 9, 3)
PAGES = {"running": (7, 2, 11), "prompt": (5, 14, 0)}
needs_native = pytest.mark.skipif(not native_code().has_products, reason="no native code for this processor")
KERNELS = {
    "reference": (PagedReference(), PLAIN),
    "blocks": (BlockAttention(), PLAIN),
    "triton": (TritonAttention(interpret=True), PLAIN),
    "native": (NativePagedAttention(), Products(native=native_code())),
}


def table(*names):
    return jnp.asarray([PAGES[name] for name in names], jnp.int32).reshape(len(names), 3)


def numbers(*values):
    return jnp.asarray(values, jnp.int32)


NONE = Paging(numbers(), numbers(), table())


class Steps:
    """Steps over one cache."""

    def __init__(self, model):
        random = np.random.RandomState(2)
        self.weights = {s.name: jnp.asarray(random.randn(*s.shape) * 0.3, jnp.float32) for s in model.weight_specs()}
        self._model, self._caches = model, [model.initial_cache(LAYOUT, group) for group in model.layer_groups]

    def run(self, token_ids, regions):
        hidden, self._caches = self._step(self.weights, self._caches, numbers(*token_ids), regions)
        return np.asarray(hidden)

    @functools.cached_property
    def _step(self):
        model = self._model

        def step(weights, caches, token_ids, regions):
            hidden, rotation = model.embed(weights, token_ids, regions.positions(len(token_ids)))
            changed = []
            for group, cache in zip(model.layer_groups, caches, strict=True):
                own = [weights[name] for name in group.weights]
                inputs = LayerGroupInputs(hidden, rotation, regions)
                hidden, written = model.run_layer_group(group, own, cache, inputs)
                changed.append(written)
            return hidden, changed

        return jax.jit(step)


@pytest.mark.parametrize(
    "kernel", [pytest.param(k, marks=needs_native if k == "native" else pytest.mark.grid) for k in KERNELS]
)
def test_a_mixed_step_computes_what_steps_of_one_sequence_compute(kernel):
    attention, products = KERNELS[kernel]
    model = Decoder(CONFIG, kernel=attention, products=products)
    alone = Steps(model)
    alone.run((*RUNNING[:5], 0, 0, 0), Regions(NONE, Paging(numbers(0), numbers(5), table("running"))))
    decoded = alone.run(RUNNING[5:], Regions(Paging(numbers(5), numbers(1), table("running")), NONE))[0]
    whole = alone.run((*PROMPT, 0, 0), Regions(NONE, Paging(numbers(0), numbers(10), table("prompt"))))[:10]

    mixed = Steps(model)
    mixed.run((*RUNNING[:5], 0, 0, 0), Regions(NONE, Paging(numbers(0), numbers(5), table("running"))))
    # Three slots, of which the second decodes; two rows of a prompt, then its last one and a row without tokens.
    slots = Paging(numbers(0, 5, 0), numbers(0, 1, 0), table("running", "running", "running"))
    rows = Paging(numbers(0, 4), numbers(4, 4), table("prompt", "prompt"))
    first = mixed.run((0, RUNNING[5], 0, *PROMPT[:8]), Regions(slots, rows))
    idle = Paging(numbers(0, 0, 0), numbers(0, 0, 0), table("running", "running", "running"))
    last_rows = Paging(numbers(8, 0), numbers(2, 0), table("prompt", "prompt"))
    last = mixed.run((0, 0, 0, *PROMPT[8:], 0, 0, 0, 0, 0, 0), Regions(idle, last_rows))

    equal = functools.partial(np.testing.assert_allclose, atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)
    equal(first[1], decoded)
    equal(np.concatenate([first[3:], last[3:5]]), whole)


def test_spans_are_the_slots_in_use_and_the_tokens_of_each_row():
    slots = Paging(numbers(0, 5, 0), numbers(0, 1, 0), table("running", "running", "running"))
    rows = Paging(numbers(0, 4), numbers(4, 2), table("prompt", "prompt"))
    regions = Regions(slots, rows)
    assert regions.spans(11).tolist() == [[0, 2], [3, 7], [7, 9]]
    assert regions.positions(11).tolist() == [0, 5, 0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert regions.width(11) == ROW
    assert Regions(NONE, rows).spans(8).tolist() == [[0, 0], [0, 4], [4, 6]]
