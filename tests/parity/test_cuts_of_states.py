"""Prompts of models with recurrent layers, cut into steps anywhere: what comes of one does not depend on the cuts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.device.mesh import DeviceMesh
from service.device.native.library import native_code
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import STATE_BEFORE, ZERO_STATE, Paging, Regions, StateSlots
from service.kernels.products.linear import PLAIN, SPLIT, Products
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.interface import LayerGroupInputs
from service.models.registry import read_config
from service.weights.assembly import assemble_weights
from tests.parity.family_cases import FAMILY_CASES
from tests.tolerances import SAME_MODEL_ATOL

pytestmark = pytest.mark.slow  # thousands of steps

ROW, ROWS, LENGTH, PAGE_SIZE, NUM_STATES = 64, 4, 232, 8, 8
BESIDE, WORKING = 7, 0  # the slots of what decodes beside, and of the prompt at first
NATIVE = Products(SPLIT.num_splits, native_code()) if native_code().has_products else PLAIN


class Steps:
    """Steps of one sequence that decodes and of the rows of a prompt, all of one shape."""

    def __init__(self, name: str) -> None:
        """Draw a text, and a token after the other of the sequence beside it."""
        case = next(case for case in FAMILY_CASES if case.name == name)
        config = read_config("test", {**case.hub_config, "max_position_embeddings": 512})
        self._model = Decoder(config, kernel=PagedReference(), products=NATIVE)
        specs, random = self._model.weight_specs(), np.random.RandomState(4)
        self._weights = assemble_weights(specs, case.tensors(), mesh=DeviceMesh((jax.devices()[0],)))
        self.text = random.randint(0, 96, LENGTH).astype(np.int32)
        self._beside = random.randint(0, 96, 2 * LENGTH).astype(np.int32)
        self._run = jax.jit(self._step, donate_argnums=1)

    def _step(self, weights, caches, token_ids, regions):
        hidden, rotation = self._model.embed(weights, token_ids, regions.positions(len(token_ids)))
        changed = []
        for group, cache in zip(self._model.layer_groups, caches, strict=True):
            own = [weights[name] for name in group.weights]
            inputs = LayerGroupInputs(hidden, rotation, regions)
            hidden, after = self._model.run_layer_group(group, own, cache, inputs)
            changed.append(after)
        return self._model.logits(weights, hidden), changed

    def logits(self, ends: list[int], *, has_beside: bool) -> np.ndarray:
        """Return the logits at each position of the text, computed in steps up to each end.

        Each step writes its last state to another slot than the one that it reads, as where a prefix was found.

        Args:
            ends: where each step ends, in order.
            has_beside: whether another sequence decodes meanwhile.
        """
        num_pages = -(-LENGTH // PAGE_SIZE)
        layout = CacheLayout(2 * num_pages, PAGE_SIZE, num_states=NUM_STATES)
        caches = [self._model.initial_cache(layout, group) for group in self._model.layer_groups]
        found, begin, slot = [], 0, WORKING
        for number, end in enumerate(ends):
            starts = [begin, *range((begin // ROW + 1) * ROW, end, ROW)]
            counts = [after - start for start, after in zip(starts, [*starts[1:], end], strict=True)]
            following = (slot + 1) % BESIDE
            reads = [slot if begin else ZERO_STATE, *[STATE_BEFORE] * (len(starts) - 1)]
            writes = [*[NUM_STATES] * (len(starts) - 1), following]
            padding = ROWS - len(starts)
            tokens = np.zeros((ROWS, ROW), np.int32)
            for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
                tokens[row, :count] = self.text[start : start + count]
            rows = self._paging(
                [*starts, *[0] * padding], [*counts, *[0] * padding], range(num_pages),
                ([*reads, *[ZERO_STATE] * padding], [*writes, *[NUM_STATES] * padding]),
            )  # fmt: skip
            state = ([BESIDE if number else ZERO_STATE], [BESIDE])
            is_here = has_beside and number < LENGTH
            decodes = self._paging([number], [int(is_here)], range(num_pages, 2 * num_pages), state)
            ids = jnp.asarray(np.concatenate([self._beside[number : number + 1], tokens.reshape(-1)]))
            logits, caches = self._run(self._weights, caches, ids, Regions(decodes, rows))
            of_rows = np.asarray(logits)[1:].reshape(ROWS, ROW, -1)
            found += [of_rows[row, :count] for row, count in enumerate(counts)]
            begin, slot = end, following
        return np.concatenate(found)

    def _paging(self, starts, counts, pages, slots):
        table = np.broadcast_to(np.array(pages, np.int32), (len(starts), len(pages)))
        states = StateSlots(*(jnp.array(of_rows, jnp.int32) for of_rows in slots))
        return Paging(jnp.array(starts, jnp.int32), jnp.array(counts, jnp.int32), jnp.asarray(table), states=states)


@functools.cache
def steps_of(name: str) -> tuple[Steps, np.ndarray]:
    """Return the steps of a model, and the logits of a text in one of them."""
    steps = Steps(name)
    return steps, steps.logits([LENGTH], has_beside=False)


def ends_of(length: int) -> list[int]:
    """Return where chunks of a length end, and those of rows that steps begin within, which no row follows."""
    chunks = [*range(length, LENGTH, length), LENGTH]
    rows = {(begin // ROW + 1) * ROW for begin in chunks if begin % ROW}
    return sorted({*chunks, *(end for end in rows if end < LENGTH)})


@pytest.mark.parametrize("has_beside", [False, True])
@pytest.mark.parametrize("name", ["lfm2", "qwen3_5", "hero"])
def test_chunks_of_every_length_give_the_same_tokens(name, has_beside):
    steps, whole = steps_of(name)
    for length in range(1, 131):
        found = steps.logits(ends_of(length), has_beside=has_beside)
        np.testing.assert_allclose(found, whole, atol=SAME_MODEL_ATOL, rtol=0, err_msg=str(length))
        np.testing.assert_array_equal(found.argmax(-1), whole.argmax(-1), err_msg=str(length))


@pytest.mark.parametrize("has_beside", [False, True])
@pytest.mark.parametrize("name", ["lfm2", "qwen3_5", "qwen3_next", "hero"])
def test_chunks_that_end_where_rows_do_give_the_same_bits(name, has_beside):
    steps, whole = steps_of(name)
    for ends in ([64, 128, 192, LENGTH], [128, LENGTH], [64, 192, LENGTH], [192, LENGTH]):
        np.testing.assert_array_equal(steps.logits(ends, has_beside=has_beside), whole)
