"""Writes of keys and values into pages, emulated, give what a scatter gives."""

import jax
import jax.numpy as jnp
import numpy as np

from service.kernels.paging import Paging
from service.kernels.ragged.write import write_pairs

NUM_SEQS, PAGES_PER_SEQ = 4, 6
VECTORS = (4, 8)  # keys and values of the heads of a token


def test_every_token_is_where_a_scatter_puts_it_and_nothing_else_is_changed():
    page_size, width = 12, 29
    random = np.random.RandomState(0)
    num_pages = NUM_SEQS * PAGES_PER_SEQ + 3
    pages = jnp.asarray(random.randn(num_pages, page_size, *VECTORS), jnp.float32)
    pairs = jnp.asarray(random.randn(NUM_SEQS, width, *VECTORS), jnp.float32)
    table = random.permutation(num_pages)[: NUM_SEQS * PAGES_PER_SEQ].reshape(NUM_SEQS, PAGES_PER_SEQ)
    # From the end of a page on; nothing; within a page; from the start of one.
    start, counts = (page_size - 1, 5, 3, 2 * page_size), (width, 0, min(width, 7), 1)
    paging = Paging(*(jnp.array(numbers, jnp.int32) for numbers in (start, counts, table)))
    written = jax.jit(lambda *arrays: write_pairs(*arrays, interpret=True))(pages, pairs, paging)
    ids, offsets = paging.destinations(width, num_pages=num_pages, page_size=page_size)
    np.testing.assert_array_equal(written, pages.at[ids, offsets].set(pairs, mode="drop"))
