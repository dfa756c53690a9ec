"""Scores to token ids, on the device: one executable whatever the options.

    a row's scores ─> allowed tokens ─> stop tokens held back ─> bias ─> penalties ─> likeliest or drawn
          └─> log-probabilities

One of three branches runs for a batch: the likeliest token and nothing else; draws; or all of the above. So a batch of
greedy rows costs one look at the scores, and an option costs nothing until somebody uses it.

Source: the order: vLLM, vllm/v1/sample/sampler.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from service.engine.steps.logprobs import PACKED_LOGPROBS, pack_logprobs
from service.engine.steps.options import Integer, Number, Options
from service.engine.steps.sampling import draw, likeliest
from service.engine.token_mask import ALL_ALLOWED, WORD_BITS

BROKEN = -1  # in place of a token id: the row's scores are no numbers
# Added to a token's count if it stands in the prompt; more than a sequence can have tokens.
IN_PROMPT = 1 << 30


class SampledRows(NamedTuple):
    """What a step brings the host."""

    token_ids: Int[Array, " row"]  # BROKEN for a row that must fail
    logprobs: Int[Array, "row packed"]  # as `logprobs` packs them; of no meaning for rows that did not ask


class Rows(NamedTuple):
    """All that is known of the rows of a step besides their scores."""

    options: Options
    slots: Int[Array, " row"]
    token_counts: Int[Array, "slot vocab"]  # how often each token came; see `count_tokens`
    allowed_words: UInt[Array, "row word"]  # one bit a token, the lowest first
    positions: Int[Array, " row"]  # of the token to be drawn; with the seed it fixes the draw
    is_row: Bool[Array, " row"]  # False for padding, whose options are a stranger's


def sample(logits: Float[Array, "row vocab"], rows: Rows) -> SampledRows:
    """Draw one token per row, and tell its log-probability where that is asked for.

    A row alone decides its token: its neighbours change the cost, never the outcome.
    """
    draws = rows.is_row & (rows.options.number(Number.TEMPERATURE) > 0)

    def drawn(scores: Float[Array, "row vocab"]) -> Int[Array, " row"]:
        tokens = draw(scores, rows.options, rows.positions)
        return jnp.where(rows.options.number(Number.TEMPERATURE) > 0, tokens, likeliest(scores))

    def adjusted() -> tuple[Int[Array, " row"], Bool[Array, " row"]]:
        scores = _adjust(logits, rows)
        return jax.lax.cond(jnp.any(draws), drawn, likeliest, scores), _is_broken(scores)

    nobody = jnp.zeros_like(draws)
    branch = jnp.where(jnp.any(rows.is_row & _is_adjusted(rows)), 2, jnp.any(draws).astype(jnp.int32))
    token_ids, is_unfit = jax.lax.switch(
        branch, [lambda: (likeliest(logits), nobody), lambda: (drawn(logits), nobody), adjusted]
    )
    is_broken = is_unfit | _is_broken(logits)
    asks = rows.is_row & (rows.options.integer(Integer.LOGPROBS) >= 0)
    logprobs = jax.lax.cond(
        jnp.any(asks),
        lambda: pack_logprobs(logits, token_ids),
        lambda: jnp.zeros((logits.shape[0], PACKED_LOGPROBS), jnp.int32),
    )
    return SampledRows(jnp.where(is_broken, BROKEN, token_ids), logprobs)


def count_tokens(
    token_counts: Int[Array, "slot vocab"],
    slot: Int[Array, ""],
    token_ids: Int[Array, " position"],
    prompt_len: Int[Array, ""],
    num_tokens: Int[Array, ""],
) -> Int[Array, "slot vocab"]:
    """Count a sequence's tokens anew, whatever stood in its slot: those of the output, and which are in the prompt."""
    positions = jnp.arange(token_ids.shape[0], dtype=jnp.int32)
    is_output = (positions >= prompt_len) & (positions < num_tokens)
    none = jnp.zeros(token_counts.shape[1], jnp.int32)
    output = none.at[token_ids].add(is_output.astype(jnp.int32), mode="drop")
    prompt = none.at[token_ids].max(jnp.where(positions < prompt_len, IN_PROMPT, 0), mode="drop")
    return token_counts.at[slot].set(output + prompt, mode="drop")


def _is_broken(logits: Float[Array, "row vocab"]) -> Bool[Array, " row"]:
    # The maximum of a row with a NaN is NaN; of one in which nothing may come, minus infinity.
    return ~jnp.isfinite(jnp.max(logits, axis=1))


def _is_adjusted(rows: Rows) -> Bool[Array, " row"]:
    options = rows.options
    return (
        options.has_penalties
        | (options.integer(Integer.HAS_BIAS) > 0)
        | (rows.positions < options.integer(Integer.STOPS_FROM))
        | jnp.any(rows.allowed_words != ALL_ALLOWED, axis=1)
    )


def _adjust(logits: Float[Array, "row vocab"], rows: Rows) -> Float[Array, "row vocab"]:
    """Apply what changes the scores themselves."""
    options = rows.options
    vocab_size = logits.shape[1]
    row_ids = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    tokens = jnp.arange(vocab_size, dtype=jnp.uint32)
    words = jnp.take(rows.allowed_words, tokens // WORD_BITS, axis=1)
    scores = jnp.where((words >> (tokens % WORD_BITS)[None, :]) & 1 == 1, logits, -jnp.inf)
    is_held_back = rows.positions < options.integer(Integer.STOPS_FROM)
    stop_ids = jnp.where(is_held_back[:, None], options.stop_ids, vocab_size)
    scores = scores.at[row_ids, stop_ids].set(-jnp.inf, mode="drop")
    scores = scores.at[row_ids, options.bias_ids].add(options.biases, mode="drop")
    return _penalize(scores, rows)


def _penalize(scores: Float[Array, "row vocab"], rows: Rows) -> Float[Array, "row vocab"]:
    """Make tokens that came before less likely, or likelier.

    The repetition penalty looks at prompt and output, the other two at the output alone.

    Source: repetition: Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the multiplication for negative scores
    of vLLM, vllm/model_executor/layers/utils.py (apply_penalties); presence and frequency:
    https://platform.openai.com/docs/advanced-usage#frequency-and-presence-penalties
    """
    options = rows.options
    counts = rows.token_counts.at[rows.slots].get(mode="clip")
    counts = jnp.where(options.has_penalties[:, None], counts, 0)
    repetition = jnp.where(counts > 0, options.number(Number.REPETITION)[:, None], 1)
    scores = jnp.where(scores > 0, scores / repetition, scores * repetition)
    in_output = (counts & (IN_PROMPT - 1)).astype(jnp.float32)
    frequency = options.number(Number.FREQUENCY)[:, None] * in_output
    return scores - frequency - options.number(Number.PRESENCE)[:, None] * (in_output > 0).astype(jnp.float32)
