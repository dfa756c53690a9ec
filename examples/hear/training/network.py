"""Whisper in plain JAX, to be differentiated, with what helps a small one to learn to attend.

An encoder that names the word of each position gives a decoder something to attend to within minutes. Some heads of the
decoder are shown where each word is said; they also tell the times of words later. The naming is not in the checkpoint.

Source: Radford et al. 2022, arXiv:2212.04356; transformers `models/whisper/modeling_whisper.py`; guided attention:
Tachibana et al. 2017, arXiv:1710.08969, section 4.1.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from examples.hear.training.lessons import NUM_MELS, WINDOW_FRAMES
from service.models.speech import sinusoids

WIDTH, NUM_HEADS, MLP_WIDTH = 128, 4, 512
ENCODER_LAYERS, DECODER_LAYERS = 3, 2
NUM_POSITIONS, CONTEXT_LEN = WINDOW_FRAMES // 2, 64
ALIGNMENT_HEADS = tuple((layer, head) for layer in range(DECODER_LAYERS) for head in range(2))
EPSILON = 1e-5
OFFSETS = ((-5, -2, 2, 5), (-10, -4, 4, 10), (-12, -5, 5, 12))  # of the heads of each layer of the encoder
LOOKING_SCALE = 1.6
NAMING_WEIGHT, GUIDE_WEIGHT = 0.5, 0.2
GUIDE_POSITIONS = 8  # the deviation around the middle of a word

type Weights = dict[str, jax.Array]  # by the names of Hugging Face's checkpoints, without "model."


class Batch(NamedTuple):
    """Windows, and the tokens of their transcripts."""

    features: Float[Any, "clip frame mel"]
    inputs: Int[Any, "clip token"]
    targets: Int[Any, "clip token"]
    target_weights: Float[Any, "clip token"]  # 0 for padding and for what precedes a transcript
    places: Float[Any, "clip token"]  # where a target word is said, as a position of the encoder; -1 for others
    named: Int[Any, "clip position"]  # the number of the word that is said at each position; 0 for none


def initial_weights(vocab_size: int, num_words: int, seed: int) -> Weights:
    """Return random weights, those that name words included."""
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}

    def linear(name: str, size_in: int, size_out: int, *, has_bias: bool = True) -> None:
        weights[f"{name}.weight"] = rng.normal(0, size_in**-0.5, (size_out, size_in))
        if has_bias:
            weights[f"{name}.bias"] = np.zeros(size_out)

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.ones(WIDTH), np.zeros(WIDTH)

    def attention(name: str) -> None:
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"{name}.{part}", WIDTH, WIDTH, has_bias=part != "k_proj")

    for side, num_layers in (("encoder", ENCODER_LAYERS), ("decoder", DECODER_LAYERS)):
        for layer in range(num_layers):
            name = f"{side}.layers.{layer}"
            for part in ("self_attn", *(("encoder_attn",) if side == "decoder" else ())):
                attention(f"{name}.{part}")
                norm(f"{name}.{part}_layer_norm")
            linear(f"{name}.fc1", WIDTH, MLP_WIDTH)
            linear(f"{name}.fc2", MLP_WIDTH, WIDTH)
            norm(f"{name}.final_layer_norm")
        norm(f"{side}.layer_norm")
    for name, size_in in (("conv1", NUM_MELS), ("conv2", WIDTH)):
        # Twice what keeps the scale, so that sound is as loud as the sinusoids of positions.
        weights[f"encoder.{name}.weight"] = rng.normal(0, 2 * (3 * size_in) ** -0.5, (WIDTH, size_in, 3))
        weights[f"encoder.{name}.bias"] = np.zeros(WIDTH)
    for layer in range(ENCODER_LAYERS):
        name = f"encoder.layers.{layer}.self_attn"
        weights[f"{name}.q_proj.weight"], weights[f"{name}.k_proj.weight"] = _looking_at(OFFSETS[layer])
    weights["decoder.embed_tokens.weight"] = rng.normal(0, WIDTH**-0.5, (vocab_size, WIDTH))
    weights["decoder.embed_positions.weight"] = rng.normal(0, 0.02, (CONTEXT_LEN, WIDTH))
    linear("naming", WIDTH, num_words + 1)
    return {name: jnp.asarray(array, jnp.float32) for name, array in weights.items()}


def _looking_at(offsets: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return queries and keys that make each head look so many positions ahead: the sinusoids of the fastest turns.

    A word is longer than what convolutions cover, and finding its neighborhood takes most of a short training.
    """
    num_pairs, half = WIDTH // NUM_HEADS // 2, WIDTH // 2
    pairs = np.arange(num_pairs)
    speeds = np.exp(-math.log(10_000) / (half - 1) * pairs)  # as in `sinusoids`
    queries, keys = np.zeros((NUM_HEADS, 2, num_pairs, WIDTH)), np.zeros((NUM_HEADS, 2, num_pairs, WIDTH))
    for head, offset in enumerate(offsets):
        sine, cosine = np.sin(offset * speeds), np.cos(offset * speeds)
        keys[head, 0, pairs, pairs] = keys[head, 1, pairs, half + pairs] = 1
        queries[head, 0, pairs, pairs], queries[head, 0, pairs, half + pairs] = cosine, sine
        queries[head, 1, pairs, pairs], queries[head, 1, pairs, half + pairs] = -sine, cosine
    return LOOKING_SCALE * queries.reshape(WIDTH, WIDTH), LOOKING_SCALE * keys.reshape(WIDTH, WIDTH)


def loss(weights: Weights, batch: Batch) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Return what training makes small, and its parts."""
    memory = encode(weights, batch.features)
    logits, attention = decode(weights, memory, batch.inputs)
    of_tokens = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
    transcript = jnp.sum(of_tokens * batch.target_weights) / jnp.sum(batch.target_weights)
    named = _linear(weights, "naming", memory)
    naming = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(named, batch.named))
    guide = _guide(attention, batch.places)
    parts = {"transcript": transcript, "naming": naming, "guide": guide}
    return transcript + NAMING_WEIGHT * naming + GUIDE_WEIGHT * guide, parts


def _guide(attention: list[Float[Array, "clip head token position"]], places: Float[Array, "clip token"]) -> jax.Array:
    """Return how far the guided heads are from where words are said."""
    distance = (jnp.arange(NUM_POSITIONS) - places[..., None]) / GUIDE_POSITIONS
    near = jnp.exp(-(distance**2) / 2)[:, None]
    is_word = (places >= 0)[:, None]
    losses = [
        -jnp.log(jnp.sum(attention[layer][:, head : head + 1] * near, axis=-1) + 1e-4)
        for layer, head in ALIGNMENT_HEADS
    ]
    return sum(jnp.sum(one * is_word) for one in losses) / len(losses) / jnp.maximum(jnp.sum(is_word), 1)


def encode(weights: Weights, features: Float[Array, "clip frame mel"]) -> Float[Array, "clip position hidden"]:
    """Return what the decoder attends to."""
    x = features
    for name, stride in (("conv1", 1), ("conv2", 2)):
        padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
        under = jnp.stack([padded[:, tap : tap + x.shape[1] : stride] for tap in range(3)], axis=-1)
        weight = weights[f"encoder.{name}.weight"]
        product = under.reshape(*under.shape[:2], -1) @ weight.reshape(len(weight), -1).T
        x = jax.nn.gelu(product + weights[f"encoder.{name}.bias"], approximate=False)
    x = x + sinusoids(NUM_POSITIONS, WIDTH)
    for layer in range(ENCODER_LAYERS):
        name = f"encoder.layers.{layer}"
        normed = _norm(weights, f"{name}.self_attn_layer_norm", x)
        x = x + _attend(weights, f"{name}.self_attn", normed, normed)[0]
        x = x + _feed_forward(weights, name, x)
    return _norm(weights, "encoder.layer_norm", x)


def decode(
    weights: Weights, memory: Float[Array, "clip position hidden"], tokens: Int[Array, "clip token"]
) -> tuple[Float[Array, "clip token vocab"], list[Float[Array, "clip head token position"]]]:
    """Return the logits of the next tokens, and what each layer's heads attend to in the memory."""
    num_tokens = tokens.shape[1]
    x = weights["decoder.embed_tokens.weight"][tokens] + weights["decoder.embed_positions.weight"][:num_tokens]
    is_visible = jnp.tril(jnp.ones((num_tokens, num_tokens), bool))
    attention = []
    for layer in range(DECODER_LAYERS):
        name = f"decoder.layers.{layer}"
        normed = _norm(weights, f"{name}.self_attn_layer_norm", x)
        x = x + _attend(weights, f"{name}.self_attn", normed, normed, is_visible)[0]
        normed = _norm(weights, f"{name}.encoder_attn_layer_norm", x)
        attended, probabilities = _attend(weights, f"{name}.encoder_attn", normed, memory)
        attention.append(probabilities)
        x = x + attended
        x = x + _feed_forward(weights, name, x)
    return _norm(weights, "decoder.layer_norm", x) @ weights["decoder.embed_tokens.weight"].T, attention


def _attend(
    weights: Weights, name: str, x: jax.Array, memory: jax.Array, is_visible: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    def heads(part: str, of: jax.Array) -> jax.Array:
        return _linear(weights, f"{name}.{part}", of).reshape(*of.shape[:2], NUM_HEADS, -1)

    query, key, value = heads("q_proj", x), heads("k_proj", memory), heads("v_proj", memory)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(query.shape[-1])
    if is_visible is not None:
        scores = jnp.where(is_visible, scores, -jnp.inf)
    probabilities = jax.nn.softmax(scores)
    attended = jnp.einsum("bhqk,bkhd->bqhd", probabilities, value).reshape(x.shape)
    return _linear(weights, f"{name}.out_proj", attended), probabilities


def _feed_forward(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    normed = _norm(weights, f"{name}.final_layer_norm", x)
    inner = jax.nn.gelu(_linear(weights, f"{name}.fc1", normed), approximate=False)
    return _linear(weights, f"{name}.fc2", inner)


def _linear(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    product = x @ weights[f"{name}.weight"].T
    return product + weights[f"{name}.bias"] if f"{name}.bias" in weights else product


def _norm(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + EPSILON)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
