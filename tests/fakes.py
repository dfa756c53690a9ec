"""Models whose output can be computed by hand."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.kernels.paging import CacheLayout
from service.models.interface import StepBatch, Weights, WeightSpec


class TokenPages(NamedTuple):
    """A cache that holds the token ids themselves."""

    token_ids: Int[Array, "page position"]


class HandCountedModel:
    """The next token is the sum of all tokens of the sequence, read back from its pages, modulo the vocabulary.

    [2, 3] is continued with 5, 10, 20, ... It reads the cache, never the input, so any mistake in paging, chunking or
    the reuse of slots changes what comes out.
    """

    context_len = 4096

    def __init__(self, vocab_size: int = 97) -> None:
        self.vocab_size = vocab_size

    def expected(self, prompt_ids: tuple[int, ...], num_tokens: int) -> list[int]:
        """Compute the continuation with a pencil."""
        token_ids = list(prompt_ids)
        for _ in range(num_tokens):
            token_ids.append(sum(token_ids) % self.vocab_size)
        return token_ids[len(prompt_ids) :]

    def weight_specs(self) -> tuple[WeightSpec, ...]:
        return ()

    def initial_cache(self, layout: CacheLayout) -> TokenPages:
        # Not zeros: a position that was never written must show.
        return TokenPages(jnp.full((layout.num_pages, layout.page_size), 41, jnp.int32))

    def decode(
        self, weights: Weights, cache: TokenPages, batch: StepBatch
    ) -> tuple[Float[Array, "seq token hidden"], TokenPages]:
        width = batch.token_ids.shape[1]
        num_pages, page_size = cache.token_ids.shape
        page_ids, offsets = batch.paging.destinations(width, num_pages=num_pages, page_size=page_size)
        pages = cache.token_ids.at[page_ids, offsets].set(batch.token_ids, mode="drop")
        context = pages[batch.paging.page_table].reshape(batch.token_ids.shape[0], -1)
        positions = batch.paging.positions(width)
        is_seen = jnp.arange(context.shape[1])[None, None, :] <= positions[:, :, None]
        sums = jnp.sum(jnp.where(is_seen, context[:, None, :], 0), axis=-1)
        return sums[..., None].astype(jnp.float32), TokenPages(pages)

    def logits(self, weights: Weights, hidden: Float[Array, "sample hidden"]) -> Float[Array, "sample vocab"]:
        return jax.nn.one_hot(hidden[:, 0].astype(jnp.int32) % self.vocab_size, self.vocab_size) * 10
