"""A model of almost no cost, whose output can be computed by hand."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging
from service.models.interface import LayerGroup, LayerGroupInputs, Weights
from service.models.weight_spec import WeightSpec


class TokenPages(NamedTuple):
    """A cache that holds the token ids themselves."""

    token_ids: Int[Array, "page position"]


class HandCountedModel:
    """The next token is the sum of all tokens of the sequence, read back from its pages, modulo the vocabulary.

    [2, 3] is continued with 5, 10, 20, ... It reads the cache, never the input, so any mistake in paging, chunking or
    the reuse of slots changes the output.
    """

    context_len = 4096
    memory_len = 0
    hidden_size = 1
    dtype = np.dtype(np.float32)
    shardings = None
    layer_groups = (LayerGroup("all", range(1), ()),)

    def __init__(self, vocab_size: int = 97) -> None:
        self.vocab_size = vocab_size

    def expected(self, prompt_ids: tuple[int, ...], num_tokens: int) -> list[int]:
        """Return the continuation, computed without the engine."""
        token_ids = list(prompt_ids)
        for _ in range(num_tokens):
            token_ids.append(sum(token_ids) % self.vocab_size)
        return token_ids[len(prompt_ids) :]

    def weight_specs(self) -> tuple[WeightSpec, ...]:
        """Return no weights."""
        return ()

    def embed(
        self, weights: Weights, token_ids: Int[Array, " token"], positions: Int[Array, " token"]
    ) -> tuple[Float[Array, "token hidden"], tuple[()]]:
        """Return the token ids as hidden states."""
        return token_ids[..., None].astype(jnp.float32), ()

    def initial_cache(self, layout: CacheLayout, group: LayerGroup) -> TokenPages:
        """Return pages of 41, not of zeros: a read of a position that was never written must change the output."""
        return TokenPages(jnp.full((layout.num_pages, layout.page_size), 41, jnp.int32))

    def run_layer_group(
        self, group: LayerGroup, weights: list[Array], cache: TokenPages, inputs: LayerGroupInputs
    ) -> tuple[Float[Array, "token hidden"], TokenPages]:
        """Write the tokens into their pages, and return the sum of each token's context."""
        sums, cache = inputs.regions.attend(_sum_context, (inputs.hidden[..., 0].astype(jnp.int32),), cache)
        return sums[..., None].astype(jnp.float32), cache

    def logits(
        self,
        weights: Weights,
        hidden: Float[Array, "sample hidden"],
        num_used: Int[Array, ""],
        *,
        stays_split: bool = False,
    ) -> Float[Array, "sample vocab"]:
        """Return logits with a peak at the sum modulo the vocabulary."""
        return jax.nn.one_hot(hidden[:, 0].astype(jnp.int32) % self.vocab_size, self.vocab_size) * 10


def _sum_context(
    arrays: tuple[Int[Array, "seq token"]], cache: TokenPages, paging: Paging
) -> tuple[Int[Array, "seq token"], TokenPages]:
    [token_ids] = arrays
    width = token_ids.shape[1]
    num_pages, page_size = cache.token_ids.shape
    page_ids, offsets = paging.destinations(width, num_pages=num_pages, page_size=page_size)
    pages = cache.token_ids.at[page_ids, offsets].set(token_ids, mode="drop")
    context = pages[paging.page_table].reshape(token_ids.shape[0], -1)
    positions = paging.positions(width)
    is_seen = jnp.arange(context.shape[1])[None, None, :] <= positions[:, :, None]
    return jnp.sum(jnp.where(is_seen, context[:, None, :], 0), axis=-1), TokenPages(pages)
