"""Logits to token ids, on the device: one executable for all options.

    logits ─> token mask ─> stop tokens held back ─> bias ─> penalties ─> argmax or a random choice
       └─> log-probabilities

One of three branches runs for a batch: argmax only; random choices; or all of the above. So a batch of greedy sequences
costs one pass over the logits, and an option costs nothing until a sequence uses it.

Source: the order: vLLM, vllm/v1/sample/sampler.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from service.engine.steps.categorical import argmax, sample_categorical
from service.engine.steps.inputs import FloatOption, IntegerOption, Options
from service.engine.steps.logprobs import PACKED_LOGPROBS, pack_logprobs
from service.engine.token_mask import ALL_ALLOWED, WORD_BITS

BROKEN = -1  # in place of a token id: the sequence's logits are NaN or infinite
# Added to a token's count if it occurs in the prompt; more than a sequence can have tokens.
IN_PROMPT = 1 << 30


class SampledTokens(NamedTuple):
    """The outputs of a step for the host."""

    token_ids: Int[Array, " seq"]  # BROKEN for a sequence that must fail
    logprobs: Int[Array, "seq packed"]  # as `pack_logprobs` returns them; undefined unless requested


class SamplingState(NamedTuple):
    """The inputs of sampling besides the logits."""

    options: Options
    slots: Int[Array, " seq"]
    token_counts: Int[Array, "slot vocab"]  # occurrences of each token; see `count_tokens`
    token_mask: UInt[Array, "seq word"]  # one bit per token, the lowest first
    positions: Int[Array, " seq"]  # of the token to be sampled; with the seed it fixes the random number
    is_sequence: Bool[Array, " seq"]  # False for padding, whose options belong to another sequence


def sample_tokens(logits: Float[Array, "seq vocab"], state: SamplingState) -> SampledTokens:
    """Sample one token per sequence, with its log-probability where that is requested.

    A sequence's token depends on its own inputs alone: the other sequences change the cost, never the outcome.
    """
    has_temperature = state.options.float_option(FloatOption.TEMPERATURE) > 0
    is_random = state.is_sequence & has_temperature

    def chosen(logits: Float[Array, "seq vocab"]) -> Int[Array, " seq"]:
        tokens = sample_categorical(logits, state.options, state.positions)
        return jnp.where(has_temperature, tokens, argmax(logits))

    def chosen_of_adjusted() -> tuple[Int[Array, " seq"], Bool[Array, " seq"]]:
        adjusted = _adjust(logits, state)
        return jax.lax.cond(jnp.any(is_random), chosen, argmax, adjusted), _is_broken(adjusted)

    all_false = jnp.zeros_like(is_random)
    branch = jnp.where(jnp.any(state.is_sequence & _is_adjusted(state)), 2, jnp.any(is_random).astype(jnp.int32))
    token_ids, is_unfit = jax.lax.switch(
        branch, [lambda: (argmax(logits), all_false), lambda: (chosen(logits), all_false), chosen_of_adjusted]
    )
    is_broken = is_unfit | _is_broken(logits)
    is_requested = state.is_sequence & (state.options.integer_option(IntegerOption.LOGPROBS) >= 0)
    logprobs = jax.lax.cond(
        jnp.any(is_requested),
        lambda: pack_logprobs(logits, token_ids),
        lambda: jnp.zeros((logits.shape[0], PACKED_LOGPROBS), jnp.int32),
    )
    return SampledTokens(jnp.where(is_broken, BROKEN, token_ids), logprobs)


def count_tokens(
    token_counts: Int[Array, "slot vocab"],
    slot: Int[Array, ""],
    token_ids: Int[Array, " position"],
    prompt_len: Int[Array, ""],
    num_tokens: Int[Array, ""],
) -> Int[Array, "slot vocab"]:
    """Replace a slot's counts by those of a sequence: occurrences in the output, plus IN_PROMPT for prompt tokens."""
    positions = jnp.arange(token_ids.shape[0], dtype=jnp.int32)
    is_output = (positions >= prompt_len) & (positions < num_tokens)
    zeros = jnp.zeros(token_counts.shape[1], jnp.int32)
    output = zeros.at[token_ids].add(is_output.astype(jnp.int32), mode="drop")
    prompt = zeros.at[token_ids].max(jnp.where(positions < prompt_len, IN_PROMPT, 0), mode="drop")
    return token_counts.at[slot].set(output + prompt, mode="drop")


def _is_broken(logits: Float[Array, "seq vocab"]) -> Bool[Array, " seq"]:
    # The maximum is NaN if any logit is, and minus infinity if no token may be sampled.
    return ~jnp.isfinite(jnp.max(logits, axis=1))


def _is_adjusted(state: SamplingState) -> Bool[Array, " seq"]:
    options = state.options
    return (
        options.has_penalties
        | (options.integer_option(IntegerOption.HAS_BIAS) > 0)
        | (state.positions < options.integer_option(IntegerOption.STOPS_FROM))
        | jnp.any(state.token_mask != ALL_ALLOWED, axis=1)
    )


def _adjust(logits: Float[Array, "seq vocab"], state: SamplingState) -> Float[Array, "seq vocab"]:
    """Apply the options that change the logits themselves."""
    options = state.options
    vocab_size = logits.shape[1]
    seqs = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    tokens = jnp.arange(vocab_size, dtype=jnp.uint32)
    words = jnp.take(state.token_mask, tokens // WORD_BITS, axis=1)
    adjusted = jnp.where((words >> (tokens % WORD_BITS)[None, :]) & 1 == 1, logits, -jnp.inf)
    is_held_back = state.positions < options.integer_option(IntegerOption.STOPS_FROM)
    stop_ids = jnp.where(is_held_back[:, None], options.stop_ids, vocab_size)
    adjusted = adjusted.at[seqs, stop_ids].set(-jnp.inf, mode="drop")
    adjusted = adjusted.at[seqs, options.bias_ids].add(options.biases, mode="drop")
    return _penalize(adjusted, state)


def _penalize(logits: Float[Array, "seq vocab"], state: SamplingState) -> Float[Array, "seq vocab"]:
    """Make tokens that occurred before less likely, or likelier.

    The repetition penalty counts prompt and output, the other two the output alone.

    Source: repetition: Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the multiplication for negative logits
    of vLLM, vllm/model_executor/layers/utils.py (apply_penalties); presence and frequency:
    https://platform.openai.com/docs/advanced-usage#frequency-and-presence-penalties
    """
    options = state.options
    counts = state.token_counts.at[state.slots].get(mode="clip")
    counts = jnp.where(options.has_penalties[:, None], counts, 0)
    repetition = jnp.where(counts > 0, options.float_option(FloatOption.REPETITION)[:, None], 1)
    logits = jnp.where(logits > 0, logits / repetition, logits * repetition)
    in_output = (counts & (IN_PROMPT - 1)).astype(jnp.float32)
    frequency = options.float_option(FloatOption.FREQUENCY)[:, None] * in_output
    return (
        logits - frequency - options.float_option(FloatOption.PRESENCE)[:, None] * (in_output > 0).astype(jnp.float32)
    )
