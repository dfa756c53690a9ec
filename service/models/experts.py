"""A mixture of experts, over named arrays.

Rows of tokens are sorted by expert, so that those of one expert lie together and its weights are read once.
"""

import math

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jaxtyping import Array, Float, Float32, Int, Int32

from service.kernels.running_sum import running_sum
from service.models.activations import activate, gated
from service.models.description import Experts, RouterBias, RouterScores
from service.models.multiply import Arrays, Multiply, NamedWeights

# Of so few rows each is compared with each: one kernel of a GPU in place of ten, or of a loop. That is the rows of a
# decode step of 64 sequences with eight experts each.
FEW_ROWS = 512


def mixture(
    x: NamedArray, description: Experts, weights: NamedWeights, multiply: Multiply, routed: NamedArray | None = None
) -> NamedArray:
    """Return the sum of the results of each token's experts, by their weights.

    Args:
        x: what the experts read.
        description: the experts.
        weights: those of the layer.
        multiply: multiplies by a weight.
        routed: what the router reads; None for what the experts read.

    Source: Shazeer et al. 2017, arXiv:1701.06538, section 2.
    """
    axes = hax.eliminate_axes(x.axes, "embed")

    def by_token(rows: NamedArray) -> Float[Array, "token embed"]:
        return rows.rearrange((*axes, "embed")).array.reshape(math.prod(axis.size for axis in axes), -1)

    tokens = by_token(x)
    with jax.named_scope("router"):
        read = tokens if routed is None else by_token(routed)
        logits = multiply(hax.named(read, ("token", "embed")), weights, "router", ("embed",), dtype=jnp.float32)
        factors, chosen = route(logits.array, description, weights)
        # Padding comes last, as if of one more expert, which multiplies nothing.
        groups = jnp.where(multiply.is_token(len(tokens))[:, None], chosen, description.num_experts)
        place, sizes = places_by_group(groups.reshape(-1), description.num_experts + 1)
        sizes = sizes[:-1]
        order = inverse(place)
    rows, expert_of_row = tokens[order // description.top_k], chosen.reshape(-1)[order]
    up_name = "expert_gate_up" if description.expert.is_gated else "expert_up"
    part_axis = 2 if description.is_interleaved else 1

    def of_experts(own: Arrays) -> Float32[Array, "row embed"]:
        up = multiply.grouped(rows, own, up_name, sizes)
        if description.expert.has_bias:
            up = up + own[f"{up_name}_bias"][expert_of_row]
        if description.expert.is_gated:
            gate, plain = (jnp.take(up, part, axis=part_axis) for part in (0, 1))
            active = gated(gate, plain, description.expert.activation)
        else:
            active = activate(up, description.expert.activation)
        return multiply.grouped(active, own, "expert_down", sizes, dtype=jnp.float32)

    with jax.named_scope("experts"):
        results = multiply.summed_over_devices(of_experts, weights, up_name, f"{up_name}_bias", "expert_down")
        of_tokens = results[place].reshape(*chosen.shape, -1)
        if description.expert.has_bias:
            of_tokens = of_tokens + weights["expert_down_bias"].array[chosen].astype(jnp.float32)
        mixed = jnp.sum(of_tokens * factors[:, :, None], axis=1)
    return hax.named(mixed.astype(x.dtype).reshape(*(axis.size for axis in axes), -1), (*axes, x.resolve_axis("embed")))


def places_by_group(groups: Int[Array, " row"], num_groups: int) -> tuple[Int[Array, " row"], Int32[Array, " group"]]:
    """Return the place of each row where rows lie by group, in their order within one, and the size of each group.

    It counts instead of sorting: steps with an `argsort` here could not be stored in a bundle, since XLA:CPU failed to
    serialize them ("`LessThan` is not serializable").
    """
    if len(groups) <= FEW_ROWS:
        order = groups * len(groups) + jnp.arange(len(groups), dtype=jnp.int32)  # of which no two are equal
        place = jnp.sum(order[None, :] < order[:, None], axis=1, dtype=jnp.int32)
        group = jax.lax.div(order, jnp.int32(len(groups)))  # of what is in memory already, on a GPU
        is_of_group = group[None, :] == jnp.arange(num_groups, dtype=jnp.int32)[:, None]
        return place, jnp.sum(is_of_group, axis=1, dtype=jnp.int32)
    is_of_group = jax.nn.one_hot(groups, num_groups, dtype=jnp.int32)
    counts = jnp.cumsum(is_of_group, axis=0)
    sizes = counts[-1]
    first = running_sum(sizes) - sizes
    return jnp.sum(is_of_group * (counts - 1 + first[None]), axis=1), sizes


def inverse(place: Int[Array, " row"]) -> Int[Array, " row"]:
    """Return the row at each place."""
    row = jnp.arange(len(place), dtype=place.dtype)
    if len(place) <= FEW_ROWS:
        return jnp.sum(jnp.where(place[None, :] == row[:, None], row[None, :], 0), axis=1)
    return jnp.zeros_like(place).at[place].set(row)


def route(
    logits: Float32[Array, "token expert"], description: Experts, weights: NamedWeights
) -> tuple[Float[Array, "token top_k"], Int[Array, "token top_k"]]:
    """Choose the experts of each token; return their weights and numbers."""
    by_score = description.bias is RouterBias.CHOICE_BY_SCORE
    ranked = jax.nn.sigmoid(logits) if by_score else logits
    biased = ranked if description.bias is None else ranked + weights["router_bias"].array[None]
    largest, chosen = jax.lax.top_k(biased, description.top_k)
    if description.bias in (RouterBias.CHOICE, RouterBias.CHOICE_BY_SCORE):
        largest = jnp.take_along_axis(logits, chosen, axis=-1)
    else:
        logits = biased
    if description.scores is RouterScores.SIGMOID:
        factors = jax.nn.sigmoid(largest)
    else:
        factors = jnp.exp(largest - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
    if description.weight_sum is not None:
        total = jnp.sum(factors, axis=-1, keepdims=True)
        total = total + description.weight_sum_eps if description.weight_sum_eps else total
        factors = factors * (description.weight_sum / total)
    if description.weight_multiplier != 1:
        factors = factors * description.weight_multiplier
    if description.has_expert_scales:
        factors = factors * weights["expert_scales"].array[chosen].astype(factors.dtype)
    return factors, chosen
