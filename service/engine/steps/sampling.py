"""Logits to token ids, on the device.

    logits ─> adjust: token mask, stop tokens held back, bias, penalties ─> choose: argmax or a random choice
       └────> log-probabilities of the chosen tokens

A program that may branch, on a CPU, does what a batch needs and no more. Where a branch costs, the host runs the
sampler that does least: see `Sampler`.

Source: the order: vLLM, vllm/v1/sample/sampler.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32, UInt

from service.engine.steps.categorical import Limits, argmax, sample_categorical
from service.engine.steps.inputs import FloatOption, IntegerOption, Options
from service.engine.steps.logprobs import PACKED_LOGPROBS, pack_logprobs, pack_scores
from service.engine.token_mask import ALL_ALLOWED, WORD_BITS

BROKEN = -1  # in place of a token id: the sequence's logits are NaN or infinite
# Added to a token's count if it occurs in the prompt; more than a sequence can have tokens.
IN_PROMPT = 1 << 30


class SamplingState(NamedTuple):
    """The inputs of sampling besides the logits and the token masks, by slot or by sampled token."""

    options: Options
    token_counts: Int[Array, "slot vocab"]  # occurrences of each token; see `count_tokens`
    positions: Int[Array, " slot"]  # of the token to be sampled; with the seed it fixes the random number
    is_sampled: Bool[Array, " slot"]  # False for padding, whose options belong to another sequence
    slots: Int[Array, " slot"] | None = None  # of `token_counts`, if these are of all slots; None if they are in order

    def first(self, num: int) -> "SamplingState":
        """Return the inputs of the first of these."""
        if num == len(self.positions):
            return self
        options = jax.tree.map(lambda leaf: leaf[:num], self.options)
        token_counts = self.token_counts[:num] if self.slots is None else self.token_counts
        slots = None if self.slots is None else self.slots[:num]
        return SamplingState(options, token_counts, self.positions[:num], self.is_sampled[:num], slots)


class Sampled(NamedTuple):
    """The outcome of a sampling."""

    token_ids: Int32[Array, " slot"]  # BROKEN for a sequence that must fail
    logprobs: Int32[Array, "slot packed"] | None = None  # as `pack_logprobs` returns them; of the general sampler


def sample_by_branches(
    logits: Float[Array, "slot vocab"], state: SamplingState, token_mask: UInt[Array, "slot word"]
) -> Sampled:
    """Sample with every option and with log-probabilities, where a branch costs nothing."""
    options, is_sampled = state.options, state.is_sampled
    is_adjusted = (
        jnp.any(token_mask != ALL_ALLOWED, axis=1)
        | (state.positions < options.integer_option(IntegerOption.STOPS_FROM))
        | (options.integer_option(IntegerOption.HAS_BIAS) > 0)
        | (options.integer_option(IntegerOption.GROUP_FROM) < logits.shape[1])
        | options.has_penalties
    )
    adjusted = jax.lax.cond(
        jnp.any(is_sampled & is_adjusted), lambda: adjust_logits(logits, state, token_mask), lambda: logits
    )
    token_ids = choose_tokens(adjusted, state)
    has_scores = options.integer_option(IntegerOption.SCORES) > 0
    has_logprobs = is_sampled & (options.integer_option(IntegerOption.LOGPROBS) >= jnp.where(has_scores, 1, 0))
    scores = jax.lax.cond(
        jnp.any(is_sampled & has_scores),
        lambda: pack_scores(adjusted, jnp.maximum(token_ids, 0)),
        lambda: jnp.zeros((len(logits), PACKED_LOGPROBS), jnp.int32),
    )
    logprobs = jax.lax.cond(
        jnp.any(has_logprobs),
        lambda: pack_logprobs(jnp.where(has_scores[:, None], adjusted, logits), jnp.maximum(token_ids, 0)),
        lambda: scores,
    )
    return Sampled(token_ids, jnp.where((has_scores & ~has_logprobs)[:, None], scores, logprobs))


def sample_with_everything(
    logits: Float[Array, "slot vocab"], state: SamplingState, token_mask: UInt[Array, "slot word"]
) -> Sampled:
    """Sample in the same way without a branch: with every option, whether a sequence has it or not."""
    adjusted = adjust_logits(logits, state, token_mask, can_branch=False)
    token_ids = choose_randomly(adjusted, state, has_limits=True)
    scored = jnp.where((state.options.integer_option(IntegerOption.SCORES) > 0)[:, None], adjusted, logits)
    return Sampled(token_ids, pack_logprobs(scored, jnp.maximum(token_ids, 0)))


def adjust_logits(
    logits: Float[Array, "seq vocab"],
    state: SamplingState,
    token_mask: UInt[Array, "seq word"],
    *,
    can_branch: bool = True,
) -> Float[Array, "seq vocab"]:
    """Apply the options that change the logits themselves; a sequence without any keeps its logits, bit by bit.

    Unless the device can branch at no cost, penalties and groups are applied whether a sequence has one or not.
    """
    options = state.options
    vocab_size = logits.shape[1]
    seqs = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    bits = jnp.arange(WORD_BITS, dtype=jnp.uint32)[None, None, :]
    is_allowed = ((token_mask[:, :, None] >> bits) & 1 == 1).reshape(len(logits), -1)[:, :vocab_size]
    adjusted = jnp.where(is_allowed, logits, -jnp.inf)
    is_held_back = state.positions < options.integer_option(IntegerOption.STOPS_FROM)
    stop_ids = jnp.where(is_held_back[:, None], options.stop_ids, vocab_size)
    adjusted = adjusted.at[seqs, stop_ids].set(-jnp.inf, mode="drop")
    adjusted = adjusted.at[seqs, options.bias_ids].add(options.biases, mode="drop")
    if can_branch:
        is_penalized = jnp.any(state.is_sampled & options.has_penalties)
        adjusted = jax.lax.cond(is_penalized, lambda: _penalize(adjusted, state), lambda: adjusted)
        has_group = jnp.any(state.is_sampled & (options.integer_option(IntegerOption.GROUP_FROM) < vocab_size))
        adjusted = jax.lax.cond(has_group, lambda: _prefer_group(adjusted, options), lambda: adjusted)
    else:
        adjusted = _prefer_group(_penalize(adjusted, state), options)
    # NaN for a broken sequence, even where the mask has removed the token with the broken logit.
    return jnp.where(_is_broken(logits)[:, None], jnp.nan, adjusted)


def choose_tokens(logits: Float[Array, "seq vocab"], state: SamplingState) -> Int[Array, " seq"]:
    """Choose one token per sequence, the likeliest or a random one; BROKEN where no choice is possible.

    A sequence's token depends only on its own inputs: the other sequences change the cost, never the outcome.
    """
    has_temperature = state.options.float_option(FloatOption.TEMPERATURE) > 0
    likeliest = argmax(logits)
    token_ids = jax.lax.cond(
        jnp.any(state.is_sampled & has_temperature),
        lambda: jnp.where(has_temperature, sample_categorical(logits, state.options, state.positions), likeliest),
        lambda: likeliest,
    )
    return jnp.where(_is_broken(logits), BROKEN, token_ids)


def choose_likeliest(logits: Float[Array, "seq vocab"], _: SamplingState) -> Int[Array, " seq"]:
    """Choose as `choose_tokens` does if no sequence has a temperature."""
    return jnp.where(_is_broken(logits), BROKEN, argmax(logits))


def choose_randomly(logits: Float[Array, "seq vocab"], state: SamplingState, *, has_limits: bool) -> Int[Array, " seq"]:
    """Choose as `choose_tokens` does, without a branch; if not `has_limits`, for sequences without top_k and top_p."""
    limits = Limits.ALWAYS if has_limits else Limits.NEVER
    has_temperature = state.options.float_option(FloatOption.TEMPERATURE) > 0
    sampled = sample_categorical(logits, state.options, state.positions, limits)
    return jnp.where(_is_broken(logits), BROKEN, jnp.where(has_temperature, sampled, argmax(logits)))


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


def _prefer_group(logits: Float[Array, "seq vocab"], options: Options) -> Float[Array, "seq vocab"]:
    """Leave a sequence only its group of tokens where the group as a whole is likelier than any other token.

    Source: https://github.com/openai/whisper/blob/main/whisper/decoding.py (ApplyTimestampRules)
    """
    first = options.integer_option(IntegerOption.GROUP_FROM)[:, None]
    is_member = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :] >= first
    of_group = jax.nn.logsumexp(logits, axis=1, where=is_member)
    likeliest_other = jnp.max(logits, axis=1, where=~is_member, initial=-jnp.inf)
    is_left_alone = (of_group > likeliest_other)[:, None]
    return jnp.where(is_left_alone & ~is_member, -jnp.inf, logits)


def _is_broken(logits: Float[Array, "seq vocab"]) -> Bool[Array, " seq"]:
    # The maximum is NaN if any logit is, and minus infinity if no token may be sampled.
    return ~jnp.isfinite(jnp.max(logits, axis=1))


def _penalize(logits: Float[Array, "seq vocab"], state: SamplingState) -> Float[Array, "seq vocab"]:
    """Make tokens that occurred before less likely, or likelier.

    The repetition penalty counts prompt and output, the other two only the output.

    Source: repetition: Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the multiplication for negative logits
    of vLLM, vllm/model_executor/layers/utils.py (apply_penalties); presence and frequency:
    https://platform.openai.com/docs/advanced-usage#frequency-and-presence-penalties
    """
    options = state.options
    token_counts = state.token_counts if state.slots is None else state.token_counts[state.slots]
    counts = jnp.where(options.has_penalties[:, None], token_counts, 0)
    repetition = jnp.where(counts > 0, options.float_option(FloatOption.REPETITION)[:, None], 1)
    logits = jnp.where(logits > 0, logits / repetition, logits * repetition)
    in_output = (counts & (IN_PROMPT - 1)).astype(jnp.float32)
    frequency = options.float_option(FloatOption.FREQUENCY)[:, None] * in_output
    return (
        logits - frequency - options.float_option(FloatOption.PRESENCE)[:, None] * (in_output > 0).astype(jnp.float32)
    )
