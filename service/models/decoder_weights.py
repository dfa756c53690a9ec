"""Weight specs of a decoder: the checkpoint tensors that make each weight, under its family's names.

Source: transformers `models/llama/modeling_llama.py` (a linear layer stores [out, in]).
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from service.models.description import (
    Activation,
    Attention,
    BranchConvolutions,
    DecoderConfig,
    Experts,
    FeedForward,
    GatedDelta,
    ImageEncoder,
    Latent,
    Layer,
    Merger,
    Norm,
    PatchEncoder,
    PerLayerEmbeddings,
    ShortConvolution,
    SpeechEncoder,
    StateSpace,
    TensorNames,
)
from service.models.quantization import Quantization, quantized_specs
from service.models.stored.layers import LayerStorage
from service.models.weight_spec import FLOAT32, TensorSource, WeightSpec

# The limits of what a weight multiplies, and of the result: tensors of one number each, beside `linear.weight`.
# Source: transformers `models/gemma4/modeling_gemma4.py` (Gemma4ClippableLinear)
LIMITS = ("input_min", "input_max", "output_min", "output_max")
LIMITED = "_limits"  # ends the name of the array that has those of each tensor of a weight

# In a narrower type a bias of the router would choose other experts, and a decay would add up to another one.
STACK_UP = "gate_up_proj"  # how the name of a stack of experts' projections up ends
ALWAYS_WIDE = (".router_bias", ".decay", ".decay_bias", ".skip")


def decoder_weight_specs(
    config: DecoderConfig,
    dtype: np.dtype = FLOAT32,
    quantization: Quantization = Quantization.NONE,
    weight_dtype: np.dtype | None = None,
) -> tuple[WeightSpec, ...]:
    """Name every weight array of a decoder, in the order of use.

    Args:
        config: the description of the model.
        dtype: of arrays that are not quantized.
        quantization: how weights of products are stored.
        weight_dtype: of those of them that are not quantized; None for `dtype`.
    """
    wide = (
        replace(spec, dtype=weight_dtype if weight_dtype and spec.num_in_axes else dtype)
        if not spec.name.endswith(ALWAYS_WIDE)
        else spec
        for spec in _wide_specs(config)
    )
    return quantized_specs(wide, quantization, config.layer_storage, dtype)


def _wide_specs(config: DecoderConfig) -> Iterator[WeightSpec]:
    embed, vocab, names = config.hidden_size, config.vocab_size, config.names
    head = f"{names.head}.weight"
    shared = (head,) if config.has_tied_embeddings else ()
    source = TensorSource(f"{names.prefix}{names.embed}.weight", (vocab, embed), (vocab, embed), also=shared)
    yield WeightSpec("embed", ("vocab", "embed"), (vocab, embed), (source,), num_in_axes=1)
    if config.num_positions:
        shape = (config.num_positions, embed)
        yield _plain("positions", ("position", "embed"), shape, f"{names.prefix}{names.positions}.weight")
    yield from _norm(config.embed_norm, "embed_norm", embed, "", names, tensor=names.embed_norm)
    if config.per_layer_embeddings is not None:
        yield from _per_layer_embeddings(config.per_layer_embeddings, config)
    for number, layer in enumerate(config.layers):
        own = _names_of_experts(names, config.layer_storage, number)
        yield from _layer(layer, f"layers.{number}.", names.of_layer(number), embed, own)
    yield from _norm(config.final_norm, "final_norm", embed, names.prefix, names, tensor=names.final_norm)
    if not config.has_tied_embeddings:
        yield _product("unembed", ("vocab", "embed"), (vocab, embed), head)
    if config.speech_encoder is not None:
        yield from _speech_encoder(config.speech_encoder)
    if isinstance(config.image_encoder, ImageEncoder):
        yield from _image_encoder(config.image_encoder, embed)
    if isinstance(config.image_encoder, PatchEncoder):
        yield from _patch_encoder(config.image_encoder, embed)


def _per_layer_embeddings(description: PerLayerEmbeddings, config: DecoderConfig) -> Iterator[WeightSpec]:
    names, layers, size = config.names, config.num_layers, description.size
    table = (description.vocab_size, layers * size)
    source = TensorSource(
        f"{names.prefix}{names.per_layer_embed}.weight", table, (description.vocab_size, layers, size)
    )
    yield WeightSpec("per_layer_embed", ("vocab", "layer", "size"), (description.vocab_size, layers, size), (source,))
    shape = (layers * size, config.hidden_size)
    tensor = f"{names.prefix}{names.per_layer_model_projection}.weight"
    source = TensorSource(tensor, shape, (layers, size, config.hidden_size))
    axes = ("layer", "size", "embed")
    yield WeightSpec("per_layer_model_projection", axes, (layers, size, config.hidden_size), (source,), num_in_axes=1)
    norm = f"{names.prefix}{names.per_layer_norm}.weight"
    yield _plain("per_layer_norm", ("size",), (size,), norm)


def _speech_encoder(encoder: SpeechEncoder) -> Iterator[WeightSpec]:
    names, embed = encoder.names, encoder.hidden_size
    for name, width in (("conv1", encoder.num_mels), ("conv2", embed)):
        tensor = f"{names.prefix}{name}"
        yield _plain(f"encoder.{name}", ("embed", "channel", "tap"), (embed, width, 3), f"{tensor}.weight")
        yield _plain(f"encoder.{name}_bias", ("embed",), (embed,), f"{tensor}.bias")
    yield from _encoder_layers(encoder)


def _image_encoder(encoder: ImageEncoder, output_size: int) -> Iterator[WeightSpec]:
    names, embed, patch = encoder.names, encoder.hidden_size, encoder.patch_size
    patches, shape = f"{names.prefix}{names.embed}", (embed, 3, patch, patch)
    source = TensorSource(f"{patches}.weight", shape, shape)
    # As a plain array: pixels in 8 bits would be rounded twice.
    yield WeightSpec("encoder.patches", ("embed", "channel", "patch_row", "patch_column"), shape, (source,))
    yield _plain("encoder.patches_bias", ("embed",), (embed,), f"{patches}.bias")
    positions = (encoder.num_patches**2, embed)
    yield _plain("encoder.positions", ("position", "embed"), positions, f"{names.prefix}{names.positions}.weight")
    yield from _encoder_layers(encoder)
    yield from _norm(encoder.mean_norm, "encoder.mean_norm", embed, "", names, tensor=encoder.mean_norm_tensor)
    # That of means is no layer, but a parameter [in, out].
    shape, is_transposed = (output_size, encoder.merged_size), encoder.mean_norm is not None
    yield _product("encoder.projection", ("row", "merged"), shape, encoder.projection, is_transposed)


def _patch_encoder(encoder: PatchEncoder, output_size: int) -> Iterator[WeightSpec]:
    names, embed, patch = encoder.names, encoder.hidden_size, encoder.patch_size
    frames, axis = ((encoder.num_frames,), ("frame",)) if encoder.num_frames else ((), ())
    patches, shape = f"{names.prefix}{names.embed}", (embed, 3, *frames, patch, patch)
    source = TensorSource(f"{patches}.weight", shape, shape)
    axes = ("embed", "channel", *axis, "patch_row", "patch_column")
    if encoder.has_channels_last:
        source = TensorSource(f"{patches}.weight", (embed, 3 * patch**2), (embed, patch, patch, 3))
        axes, shape = ("embed", "patch_row", "patch_column", "channel"), (embed, patch, patch, 3)
    yield WeightSpec("encoder.patches", axes, shape, (source,))
    if encoder.has_patch_bias:
        yield _plain("encoder.patches_bias", ("embed",), (embed,), f"{patches}.bias")
    if encoder.has_position_tables:
        count, tensor = encoder.num_positions, f"{names.prefix}{names.positions}"
        source = TensorSource(tensor, (2, count, embed), (2 * count, embed))
        yield WeightSpec("encoder.positions", ("position", "embed"), (2 * count, embed), (source,))
    elif encoder.num_positions:
        positions = (encoder.num_positions**2, embed)
        yield _plain("encoder.positions", ("position", "embed"), positions, f"{names.prefix}{names.positions}.weight")
    yield from _norm(encoder.first_norm, "encoder.first_norm", embed, names.prefix, names, tensor=names.embed_norm)
    for number, layer in enumerate(encoder.layers):
        yield from _layer(layer, f"encoder.layers.{number}.", names.of_layer(number), embed, names)
        if encoder.has_limits:
            yield from _limits(f"encoder.layers.{number}.", names.of_layer(number), names)
        if number in encoder.taps and isinstance(encoder.rows, Merger):
            theirs = f"{names.prefix}deepstack_merger_list.{encoder.taps.index(number)}."
            tap = replace(encoder.rows, prefix=theirs)
            ours, norm_size = f"encoder.layers.{number}.tap.", encoder.merge_size**2 * embed
            yield from _merger(encoder, tap, ours, output_size, norm_size=norm_size)
    if isinstance(encoder.rows, Merger):
        yield from _merger(encoder, encoder.rows, "encoder.rows.", output_size, norm_size=embed)
    else:
        for name, tensor in zip(("bias", "scale"), encoder.rows.standard or (), strict=False):
            yield _plain(f"encoder.rows.standard_{name}", ("embed",), (embed,), tensor)
        yield _product("encoder.rows.projection", ("row", "embed"), (output_size, embed), encoder.rows.projection)


def _limits(ours: str, theirs: str, names: TensorNames) -> Iterator[WeightSpec]:
    """Name the limits of what each tensor of a layer multiplies, and of the results; see `LimitedMultiply`."""
    for name, tensors in (
        ("qkv", names.qkv),
        ("output", (names.output,)),
        ("gate_up", names.gate_up),
        ("down", (names.down,)),
    ):
        sources = tuple(
            TensorSource(f"{theirs}{tensor.removesuffix('.linear')}.{limit}", (), (1,))
            for tensor in tensors
            for limit in LIMITS
        )
        yield WeightSpec(f"{ours}{name}{LIMITED}", ("limit",), (len(sources),), sources)


def _merger(
    encoder: PatchEncoder, merger: Merger, ours: str, output_size: int, *, norm_size: int
) -> Iterator[WeightSpec]:
    theirs, embed, num_merged = merger.prefix, encoder.hidden_size, encoder.merge_size**2
    yield from _norm(merger.norm, f"{ours}norm", norm_size, theirs, encoder.names, tensor="norm")
    merged = inner = num_merged * embed
    if merger.first is not None:
        source = TensorSource(f"{theirs}{merger.first}.weight", (embed, merged), (embed, embed, num_merged))
        axes = ("merged", "embed", "place")
        yield WeightSpec(f"{ours}first", axes, (embed, embed, num_merged), (source,), num_in_axes=2)
        merged, inner = embed, output_size
    yield _product(f"{ours}up", ("inner", "merged"), (inner, merged), f"{theirs}{merger.up}.weight")
    if merger.has_bias:
        yield _plain(f"{ours}up_bias", ("inner",), (inner,), f"{theirs}{merger.up}.bias")
    yield _product(f"{ours}down", ("row", "inner"), (output_size, inner), f"{theirs}{merger.down}.weight")
    if merger.has_bias:
        yield _plain(f"{ours}down_bias", ("row",), (output_size,), f"{theirs}{merger.down}.bias")


def _encoder_layers(encoder: SpeechEncoder | ImageEncoder) -> Iterator[WeightSpec]:
    names, embed = encoder.names, encoder.hidden_size
    for number, layer in enumerate(encoder.layers):
        yield from _layer(layer, f"encoder.layers.{number}.", names.of_layer(number), embed, names)
    yield from _norm(encoder.final_norm, "encoder.final_norm", embed, names.prefix, names, tensor=names.final_norm)


def _layer(layer: Layer, ours: str, theirs: str, embed: int, names: TensorNames) -> Iterator[WeightSpec]:
    def norm(norm: Norm | None, name: str, tensor: str | None) -> Iterator[WeightSpec]:
        return _norm(norm, ours + name, embed, theirs, names, tensor=tensor)

    yield from norm(layer.attention_norm, "attention_norm", names.attention_norm)
    yield from norm(layer.embedding_norm, "embedding_norm", names.embedding_norm)
    if layer.attention is not None:
        num_read = embed if layer.embedding_norm is None else 2 * embed
        yield from _attention(layer.attention, ours, theirs, embed, names, num_read=num_read)
    match layer.state:
        case ShortConvolution() as convolution:
            yield from _short_convolution(convolution, ours, theirs, embed, names)
        case GatedDelta() as delta:
            yield from _gated_delta(delta, ours, theirs, embed, names)
        case StateSpace() as space:
            yield from _state_space(space, ours, theirs, embed, names)
        case BranchConvolutions() as convolutions:
            assert layer.attention is not None, "a branch that convolves is one of attention"
            yield from _branch_convolutions(convolutions, layer.attention, ours, theirs, names)
        case None:
            pass
    yield from norm(layer.attention_post_norm, "attention_post_norm", names.attention_post_norm)
    if layer.memory_attention is not None:
        yield from norm(layer.memory_norm, "memory_norm", names.memory_norm)
        yield from _memory_attention(layer.memory_attention, ours, theirs, embed, names)
    yield from norm(layer.mlp_norm, "mlp_norm", names.mlp_norm)
    if isinstance(layer.feed_forward, Experts):
        yield from _experts(layer.feed_forward, ours, theirs, embed, names)
    elif layer.feed_forward is not None:
        yield from _feed_forward(layer.feed_forward, ours, theirs, embed, names)
    if layer.beside is not None:
        yield from norm(layer.beside.feed_forward_post_norm, "feed_forward_post_norm", names.feed_forward_post_norm)
        yield from norm(layer.beside.norm, "beside_norm", names.beside_norm)
        yield from _experts(layer.beside.experts, ours, theirs, embed, names)
        yield from norm(layer.beside.post_norm, "beside_post_norm", names.beside_post_norm)
    yield from norm(layer.mlp_post_norm, "mlp_post_norm", names.mlp_post_norm)
    if layer.per_layer_input is not None:
        size = layer.per_layer_input.size
        yield _product(
            ours + "per_layer_gate", ("size", "embed"), (size, embed), f"{theirs}{names.per_layer_gate}.weight"
        )
        up = f"{theirs}{names.per_layer_projection}.weight"
        yield _product(ours + "per_layer_projection", ("embed", "size"), (embed, size), up)
        yield from norm(layer.per_layer_input.post_norm, "per_layer_post_norm", names.per_layer_post_norm)
    if layer.has_output_scale:
        yield _plain(ours + "output_scale", ("one",), (1,), f"{theirs}{names.output_scale}")


def _attention(
    attention: Attention, ours: str, theirs: str, embed: int, names: TensorNames, *, num_read: int
) -> Iterator[WeightSpec]:
    width, is_transposed = attention.num_heads * attention.head_dim, names.has_transposed_products
    yield _joined_heads(attention, ours + "qkv", theirs, names, num_read)
    # Two axes: of four, a TPU would tile the last two, and lay the array out anew in each step.
    yield _product(ours + "output", ("embed", "heads"), (embed, width), f"{theirs}{names.output}.weight", is_transposed)
    if attention.has_bias:
        yield _joined_heads(attention, ours + "qkv_bias", theirs, names, None)
    if attention.has_output_bias:
        yield _plain(ours + "output_bias", ("embed",), (embed,), f"{theirs}{names.output}.bias")
    if attention.qk_norm is not None:
        yield from _qk_norms(attention.qk_norm, attention, ours, theirs, names)
    heads = (attention.num_kv_heads, attention.group_size)
    if attention.has_sinks:
        source = TensorSource(f"{theirs}{names.sinks}", (attention.num_heads,), heads)
        yield WeightSpec(ours + "sinks", ("kv_head", "group"), heads, (source,))
    if attention.has_gates:
        source = TensorSource(f"{theirs}{names.head_gates}.weight", (attention.num_heads, embed), (*heads, embed))
        yield WeightSpec(ours + "head_gates", ("kv_head", "group", "embed"), (*heads, embed), (source,))


def _short_convolution(
    state: ShortConvolution, ours: str, theirs: str, embed: int, names: TensorNames
) -> Iterator[WeightSpec]:
    width, (projection,), (convolution,) = state.num_channels, names.state_in, names.state_convolution
    source = TensorSource(f"{theirs}{projection}.weight", (3 * width, embed), (3, width, embed))
    yield WeightSpec(ours + "state_in", ("part", "state_channel", "embed"), (3, width, embed), (source,), num_in_axes=1)
    source = TensorSource(f"{theirs}{convolution}.weight", (width, 1, state.width), (width, state.width))
    yield WeightSpec(ours + "taps", ("state_channel", "tap"), (width, state.width), (source,))
    yield _product(ours + "state_out", ("embed", "state_channel"), (embed, width), f"{theirs}{names.state_out}.weight")
    if state.has_bias:
        source = TensorSource(f"{theirs}{projection}.bias", (3 * width,), (3, width))
        yield WeightSpec(ours + "state_in_bias", ("part", "state_channel"), (3, width), (source,))
        yield _plain(ours + "taps_bias", ("state_channel",), (width,), f"{theirs}{convolution}.bias")
        yield _plain(ours + "state_out_bias", ("embed",), (embed,), f"{theirs}{names.state_out}.bias")


def _branch_convolutions(
    state: BranchConvolutions, attention: Attention, ours: str, theirs: str, names: TensorNames
) -> Iterator[WeightSpec]:
    width, of_keys, *of_results = (state.width, *names.branch_taps)
    if state.key_channels:
        heads, dim, copies = attention.num_kv_heads, attention.head_dim, attention.kv_copies
        used, shape = heads // copies * dim, (heads, dim, width)
        stored = (attention.stored_kv_heads or heads // copies) * dim
        tensor = f"{theirs}{of_keys}.weight"
        source = TensorSource(tensor, (stored, width), shape, copies, rows=(0, used), is_transposed=True)
        yield WeightSpec(ours + "key_taps", ("kv_head", "head_dim", "tap"), shape, (source,), concat_axis=1)
    for name, tensor in zip(("attention", "feed_forward"), of_results, strict=True):
        if name in state.channels:
            shape = (state.channels[name], width)
            source = TensorSource(f"{theirs}{tensor}.weight", shape, shape, is_transposed=True)
            yield WeightSpec(f"{ours}{name}_taps", ("embed", "tap"), shape, (source,))


def _gated_delta(delta: GatedDelta, ours: str, theirs: str, embed: int, names: TensorNames) -> Iterator[WeightSpec]:
    heads, group = delta.num_key_heads, delta.group_size
    own = (delta.key_dim, delta.key_dim, group * delta.value_dim)  # of a key head: its query, its key, its values
    convolved, results = delta.num_channels, delta.result_size

    def parts(tensors: tuple[str, ...], *inner: int, view: tuple[int, ...]) -> tuple[TensorSource, ...]:
        """Return queries, keys and values of three tensors, or of one that has those of all heads after each other."""
        if len(tensors) == len(own):
            return tuple(
                TensorSource(f"{theirs}{tensor}.weight", (heads * size, *inner), (heads, size, *view))
                for tensor, size in zip(tensors, own, strict=True)
            )
        ends, tensor = [heads * sum(own[: part + 1]) for part in range(len(own))], f"{theirs}{tensors[0]}.weight"
        return tuple(
            TensorSource(tensor, (convolved, *inner), (heads, size, *view), rows=(end - heads * size, end))
            for size, end in zip(own, ends, strict=True)
        )

    rows = delta.head_channels + group * delta.value_dim
    if len(names.state_in) == 1:  # each head's together
        tensor = f"{theirs}{names.state_in[0]}.weight"
        sources: tuple[TensorSource, ...] = (TensorSource(tensor, (heads * rows, embed), (heads, rows, embed)),)
    else:
        *convolved_in, gates = names.state_in
        gate = TensorSource(f"{theirs}{gates}.weight", (results, embed), (heads, group * delta.value_dim, embed))
        sources = (*parts(tuple(convolved_in), embed, view=(embed,)), gate)
    axes, shape = ("key_head", "head_channel", "embed"), (heads, rows, embed)
    yield WeightSpec(ours + "state_in", axes, shape, sources, concat_axis=1, num_in_axes=1)
    per_tensor = 2 // len(names.state_gates) * group
    sources = tuple(
        TensorSource(f"{theirs}{name}.weight", (heads * per_tensor, embed), (heads, per_tensor, embed))
        for name in names.state_gates
    )
    # As a plain array: in 8 bits it would decay otherwise.
    yield WeightSpec(ours + "state_gates", axes, (heads, 2 * group, embed), sources, concat_axis=1)
    taps = parts(names.state_convolution, 1, delta.width, view=(delta.width,))
    shape = (heads, delta.head_channels, delta.width)
    yield WeightSpec(ours + "taps", ("key_head", "head_channel", "tap"), shape, taps, concat_axis=1)
    for name, tensor in (("decay", names.state_decay), ("decay_bias", names.state_decay_bias)):
        source = TensorSource(f"{theirs}{tensor}", (delta.num_value_heads,), (heads, group))
        yield WeightSpec(ours + name, ("key_head", "group"), (heads, group), (source,), is_finite=True)
    yield _plain(ours + "state_norm", ("value_dim",), (delta.value_dim,), f"{theirs}{names.state_norm}.weight")
    yield _product(ours + "state_out", ("embed", "heads"), (embed, results), f"{theirs}{names.state_out}.weight")


def _state_space(space: StateSpace, ours: str, theirs: str, embed: int, names: TensorNames) -> Iterator[WeightSpec]:
    groups, width, dim = space.num_groups, space.group_width, space.state_dim
    (projection,), (convolution,) = names.state_in, names.state_convolution
    # Of a tensor: the gates, the values, B and C, each of all groups, and the steps of the heads.
    sizes = (groups * width, groups * width, groups * dim, groups * dim, space.num_heads)
    ends = [sum(sizes[: part + 1]) for part in range(len(sizes))]
    gates, values, writes, reads, steps = zip(sizes, ends, strict=True)

    def parts(
        tensor: str, total: int, begin: int, *each: tuple[int, int], inner: tuple[int, ...] = ()
    ) -> tuple[TensorSource, ...]:
        """Return rows of a tensor whose first row is one of the projection's, group by group."""
        return tuple(
            TensorSource(
                tensor,
                (total, *inner),
                (groups, size // groups, *(inner[-1:])),
                rows=(end - size - begin, end - begin),
            )
            for size, end in each
        )

    rows, by_group = space.group_channels + width, ("key_head", "head_channel")
    weight, bias = f"{theirs}{projection}.weight", f"{theirs}{projection}.bias"
    of_rows, of_steps = (values, writes, reads, gates), ((groups, space.group_size), ("key_head", "group"))
    sources = parts(weight, ends[-1], 0, *of_rows, inner=(embed,))
    axes, shape = (*by_group, "embed"), (groups, rows, embed)
    yield WeightSpec(ours + "state_in", axes, shape, sources, concat_axis=1, num_in_axes=1)
    # As a plain array: in 8 bits it would decay otherwise.
    sources = parts(weight, ends[-1], 0, steps, inner=(embed,))
    yield WeightSpec(ours + "state_steps", (*of_steps[1], "embed"), (*of_steps[0], embed), sources)
    if space.has_bias:
        sources = parts(bias, ends[-1], 0, *of_rows)
        yield WeightSpec(ours + "state_in_bias", by_group, (groups, rows), sources, concat_axis=1)
        yield WeightSpec(ours + "state_steps_bias", of_steps[1], of_steps[0], parts(bias, ends[-1], 0, steps))
    convolved, taps = (values, writes, reads), (groups, space.group_channels, space.width)
    tensor, channels, begin = f"{theirs}{convolution}", space.num_channels, sizes[0]
    sources = parts(f"{tensor}.weight", channels, begin, *convolved, inner=(1, space.width))
    yield WeightSpec(ours + "taps", (*by_group, "tap"), taps, sources, concat_axis=1)
    if space.has_taps_bias:
        sources = parts(f"{tensor}.bias", channels, begin, *convolved)
        yield WeightSpec(ours + "taps_bias", by_group, taps[:2], sources, concat_axis=1)
    for name, stored in (
        ("decay", names.state_decay),
        ("decay_bias", names.state_decay_bias),
        ("skip", names.state_skip),
    ):
        source = TensorSource(f"{theirs}{stored}", (space.num_heads,), of_steps[0])
        yield WeightSpec(ours + name, of_steps[1], of_steps[0], (source,), is_finite=True)
    if space.norm is not None:
        source = TensorSource(f"{theirs}{names.state_norm}.weight", (space.result_size,), (groups, width))
        yield WeightSpec(ours + "state_norm", ("key_head", "group_channel"), (groups, width), (source,))
    out = f"{theirs}{names.state_out}"
    yield _product(ours + "state_out", ("embed", "heads"), (embed, space.result_size), f"{out}.weight")
    if space.has_output_bias:
        yield _plain(ours + "state_out_bias", ("embed",), (embed,), f"{out}.bias")


def _joined_heads(attention: Attention, name: str, theirs: str, names: TensorNames, embed: int | None) -> WeightSpec:
    """Join queries, keys and values within each key-value head: their weights, or without `embed` their biases."""
    heads, dim = attention.num_kv_heads, attention.head_dim
    suffix, in_shape, in_axes = (".bias", (), ()) if embed is None else (".weight", (embed,), ("embed",))
    # How many of queries, keys and values belong to a key-value head, and how often each comes.
    each = ((attention.query_rows, 1), (1, attention.kv_copies), (1, attention.kv_copies))
    has_keys = not attention.shares_cache and (embed is not None or attention.has_key_bias)
    has_values = not attention.shares_cache and attention.has_values
    present = [part for part, is_there in enumerate((True, has_keys, has_values)) if is_there]
    members_of, is_fused = [each[part] for part in present], len(names.qkv) == 1
    tensors = names.qkv if is_fused else tuple(names.qkv[part] for part in present)
    rows = [heads // copies * members * dim for members, copies in members_of]
    # Of keys and of values a tensor may have more heads than the layer uses, which are its first.
    stored = [part and attention.stored_kv_heads for part in present]
    sources = tuple(
        TensorSource(
            f"{theirs}{tensor}{suffix}",
            shape=(sum(rows) if is_fused else (stored[index] or 0) * dim or rows[index], *in_shape),
            view=(heads, members, dim, *in_shape),
            copies=copies,
            rows=(sum(rows[:index]), sum(rows[: index + 1]))
            if is_fused
            else (0, rows[index])
            if stored[index]
            else None,
            is_transposed=names.has_transposed_products and embed is not None,
        )
        for index, (tensor, (members, copies)) in enumerate(
            zip(tensors * 3 if is_fused else tensors, members_of, strict=True)
        )
    )
    axes, shape = (
        ("kv_head", "qkv_group", "head_dim", *in_axes),
        (heads, sum(members for members, _ in members_of), dim, *in_shape),
    )
    parts = (*names.qkv[1:], names.key_norm) if attention.shares_cache else ()
    unused = tuple(f"{theirs}{part}" for part in parts)
    return WeightSpec(name, axes, shape, sources, concat_axis=1, num_in_axes=len(in_axes), unused=unused)


def _memory_attention(
    attention: Attention, ours: str, theirs: str, embed: int, names: TensorNames
) -> Iterator[WeightSpec]:
    heads, group, dim, copies = attention.num_kv_heads, attention.group_size, attention.head_dim, attention.kv_copies
    query, key, value = (f"{theirs}{name}" for name in names.memory_qkv)
    width, shared = attention.num_heads * dim, heads // copies * dim
    of_query, of_memory = ("kv_head", "group", "head_dim"), ("kv_head", "key_value", "head_dim")
    source = TensorSource(f"{query}.weight", (width, embed), (heads, group, dim, embed))
    shape = (heads, group, dim, embed)
    yield WeightSpec(ours + "memory_query", (*of_query, "embed"), shape, (source,), num_in_axes=1)
    pair = tuple(
        TensorSource(f"{name}.weight", (shared, embed), (heads, 1, dim, embed), copies) for name in (key, value)
    )
    shape = (heads, 2, dim, embed)
    yield WeightSpec(ours + "memory_key_value", (*of_memory, "embed"), shape, pair, concat_axis=1, num_in_axes=1)
    output = f"{theirs}{names.memory_output}"
    yield _product(ours + "memory_output", ("embed", "heads"), (embed, width), f"{output}.weight")
    if attention.has_bias:
        source = TensorSource(f"{query}.bias", (width,), (heads, group, dim))
        yield WeightSpec(ours + "memory_query_bias", of_query, (heads, group, dim), (source,))
        source = TensorSource(f"{value}.bias", (shared,), (heads, dim), copies)
        yield WeightSpec(ours + "memory_value_bias", ("kv_head", "head_dim"), (heads, dim), (source,), concat_axis=1)
    if attention.has_output_bias:
        yield _plain(ours + "memory_output_bias", ("embed",), (embed,), f"{output}.bias")


def _qk_norms(norm: Norm, attention: Attention, ours: str, theirs: str, names: TensorNames) -> Iterator[WeightSpec]:
    dim, heads, group, copies = attention.head_dim, attention.num_kv_heads, attention.group_size, attention.kv_copies
    parts = [part for part, has_part in (("weight", norm.has_weight), ("bias", norm.has_bias)) if has_part]
    # Of queries and of keys: the heads of each, and how often the checkpoint's come.
    of_each = [("query_norm", names.query_norm, group, 1), ("key_norm", names.key_norm, 1, copies)]
    for name, tensor, members, times in of_each[:1] if attention.shares_cache else of_each:
        for part in parts:
            own, stored = ours + (name if part == "weight" else f"{name}_bias"), f"{theirs}{tensor}.{part}"
            if not attention.is_qk_norm_whole:
                yield _plain(own, ("head_dim",), (dim,), stored)
                continue
            shape = (heads, members, dim)
            source = TensorSource(stored, (heads // times * members * dim,), shape, times)
            yield WeightSpec(own, ("kv_head", "group", "head_dim"), shape, (source,), concat_axis=1)


def _feed_forward(
    description: FeedForward, ours: str, theirs: str, embed: int, names: TensorNames
) -> Iterator[WeightSpec]:
    mlp, is_transposed = description.size, names.has_transposed_products
    # With a gate there are two projections up, in one tensor or in two.
    up, parts, first_axes = ("gate_up", 2, ("gate_up",)) if description.is_gated else ("up", 1, ())
    of_each = parts // len(names.gate_up)
    first_shape, view = (parts,) * len(first_axes), (of_each,) * len(first_axes)
    weights = tuple(
        TensorSource(f"{theirs}{name}.weight", (of_each * mlp, embed), (*view, mlp, embed), is_transposed=is_transposed)
        for name in names.gate_up
    )
    yield WeightSpec(ours + up, (*first_axes, "mlp", "embed"), (*first_shape, mlp, embed), weights, num_in_axes=1)
    yield _product(ours + "down", ("embed", "mlp"), (embed, mlp), f"{theirs}{names.down}.weight", is_transposed)
    if description.has_bias:
        biases = tuple(TensorSource(f"{theirs}{name}.bias", (of_each * mlp,), (*view, mlp)) for name in names.gate_up)
        yield WeightSpec(f"{ours}{up}_bias", (*first_axes, "mlp"), (*first_shape, mlp), biases)
        yield _plain(ours + "down_bias", ("embed",), (embed,), f"{theirs}{names.down}.bias")
    if description.activation is Activation.XIELU:
        for name in ("alpha_p", "alpha_n"):
            yield _plain(ours + name, ("one",), (1,), f"{theirs}{names.activation}.{name}")


def _shared_experts(experts: Experts, ours: str, theirs: str, embed: int, names: TensorNames) -> Iterator[WeightSpec]:
    """Name the weights of the expert that all tokens share: several of a checkpoint side by side are one."""
    shared, number = experts.shared, experts.num_shared
    assert shared is not None, "only experts that are shared have weights"
    if "{}" not in names.down:
        yield from _feed_forward(shared, ours, theirs, embed, names)
        return
    mlp, part = shared.size, shared.size // number
    ups = tuple(
        TensorSource(f"{theirs}{name.format(expert)}.weight", (part, embed), (part, embed))
        for name in names.gate_up
        for expert in range(number)
    )
    yield WeightSpec(ours + "gate_up", ("gate_up", "mlp", "embed"), (2, mlp, embed), ups, num_in_axes=1)
    downs = tuple(
        TensorSource(f"{theirs}{names.down.format(expert)}.weight", (embed, part), (embed, part))
        for expert in range(number)
    )
    # As a plain array: the elements that a scale belongs to lie in several tensors.
    yield WeightSpec(ours + "down", ("embed", "mlp"), (embed, mlp), downs, concat_axis=1)


def _experts(experts: Experts, ours: str, theirs: str, embed: int, names: TensorNames) -> Iterator[WeightSpec]:
    number, mlp, hidden = experts.num_experts, experts.expert.size, embed
    # As a plain array: in 8 bits a router would choose other experts.
    yield _plain(ours + "router", ("expert", "embed"), (number, embed), f"{theirs}{names.router}.weight")
    if experts.router_norm is not None:
        yield _plain(ours + "router_norm", ("embed",), (embed,), f"{theirs}{names.router_norm}")
    if experts.has_expert_scales:
        yield _plain(ours + "expert_scales", ("expert",), (number,), f"{theirs}{names.expert_scales}")
    if experts.latent is not None:
        yield from _latent_projections(experts.latent, ours, theirs, embed, names)
        embed = experts.latent.size
    if experts.bias is not None:
        bias_tensor = names.router_bias or f"{names.router}.bias"
        yield _plain(ours + "router_bias", ("expert",), (number,), f"{theirs}{bias_tensor}")
    is_transposed = names.has_transposed_experts
    up_axes, up_shape, part = _shape_up(experts, 2 // len(names.expert_gate_up))
    up = tuple(
        TensorSource(
            f"{theirs}{name}",
            (*stack, math.prod(part), embed),
            (*(stack or (1,)), *part, embed),
            is_transposed=is_transposed,
        )
        for name, stack in _each_expert(names.expert_gate_up, number)
    )
    concat_axis = 1 if len(up) == 2 and number > 1 else 0
    gate_up = ours + ("expert_gate_up" if experts.expert.is_gated else "expert_up")
    yield WeightSpec(gate_up, (*up_axes, "embed"), (*up_shape, embed), up, concat_axis, num_in_axes=1)
    downs = tuple(
        TensorSource(
            f"{theirs}{name}", (*stack, embed, mlp), (*(stack or (1,)), embed, mlp), is_transposed=is_transposed
        )
        for name, stack in _each_expert((names.expert_down or "",), number)
    )
    down = ours + "expert_down"
    yield WeightSpec(down, ("expert", "embed", "mlp"), (number, embed, mlp), downs, num_in_axes=1)
    if experts.expert.has_bias:
        bias = TensorSource(f"{theirs}{names.expert_gate_up[0]}_bias", (number, 2 * mlp), up_shape)
        yield WeightSpec(f"{gate_up}_bias", up_axes, up_shape, (bias,))
        yield _plain(f"{down}_bias", ("expert", "embed"), (number, embed), f"{theirs}{names.expert_down}_bias")
    if experts.shared is not None:
        if names.shared_down is not None:
            names = replace(names, gate_up=names.shared_gate_up, down=names.shared_down)
        yield from _shared_experts(experts, ours, theirs, hidden, names)
    if experts.has_shared_gate:
        yield _plain(ours + "shared_gate", ("one", "embed"), (1, hidden), f"{theirs}{names.shared_gate}.weight")


def _names_of_experts(names: TensorNames, storage: LayerStorage | None, layer: int) -> TensorNames:
    """Return the names of a layer whose experts are quantized each by itself, where the wide checkpoint has stacks.

    Source: NVIDIA ModelOpt `export/moe_utils.py` (_export_fused_experts); llm-compressor does the same
    """
    stack = names.expert_gate_up[0] if names.expert_gate_up else ""
    if storage is None or not stack.endswith(f".{STACK_UP}") or "{}" in stack or names.has_transposed_experts:
        return names
    expert = f"{stack.removesuffix(STACK_UP)}{{}}."
    single = replace(names, expert_gate_up=(f"{expert}gate_proj", f"{expert}up_proj"), expert_down=f"{expert}down_proj")
    is_quantized = storage.holds(f"{names.of_layer(layer)}{expert.format(0)}down_proj.weight")
    return single if is_quantized else names


def _shape_up(experts: Experts, num_parts: int) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the axes of the experts' projections up and their sizes, but for the last, and the part of one tensor.

    Args:
        experts: their description.
        num_parts: how many of the gate and what it multiplies a tensor has.
    """
    number, mlp = experts.num_experts, experts.expert.size
    if not experts.expert.is_gated:
        return ("expert", "mlp"), (number, mlp), (mlp,)
    if experts.is_interleaved:
        return ("expert", "mlp", "gate_up"), (number, mlp, 2), (mlp, 2)
    return ("expert", "gate_up", "mlp"), (number, 2, mlp), (num_parts, mlp)


def _latent_projections(latent: Latent, ours: str, theirs: str, embed: int, names: TensorNames) -> Iterator[WeightSpec]:
    size, (first, second) = latent.size, (f"{theirs}{name}" for name in names.latent)
    yield _product(ours + "latent_in", ("latent", "embed"), (size, embed), f"{first}.weight")
    yield _product(ours + "latent_out", ("embed", "latent"), (embed, size), f"{second}.weight")
    yield from _norm(latent.norm, ours + "latent_norm", size, theirs, names, tensor=names.latent_norm)
    if latent.has_bias:
        yield _plain(ours + "latent_in_bias", ("latent",), (size,), f"{first}.bias")
        yield _plain(ours + "latent_out_bias", ("embed",), (embed,), f"{second}.bias")


def _each_expert(names: tuple[str, ...], number: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return the names of the experts' tensors in order, each with the axes that its stack has before an expert's."""
    if "{}" in names[0]:
        yield from ((f"{name.format(expert)}.weight", ()) for expert in range(number) for name in names)
    else:
        yield from ((name, (number,)) for name in names)


def _norm(
    norm: Norm | None, name: str, size: int, theirs: str, names: TensorNames, *, tensor: str | None
) -> Iterator[WeightSpec]:
    if norm is None:
        return
    if norm.has_weight:
        also = tuple(f"{theirs}{other}.weight" for own, other in names.also if own == tensor)
        source = TensorSource(f"{theirs}{tensor}.weight", (size,), (size,), also=also)
        yield WeightSpec(name, ("embed",), (size,), (source,))
    if norm.has_bias:
        yield _plain(f"{name}_bias", ("embed",), (size,), f"{theirs}{tensor}.bias")
    if norm.gate_rank:
        gate = theirs + dict(names.norm_gates)[tensor or ""]
        yield _plain(f"{name}_gate_down", ("rank", "embed"), (norm.gate_rank, size), f"{gate}.down_proj.weight")
        yield _plain(f"{name}_gate_up", ("embed", "rank"), (size, norm.gate_rank), f"{gate}.up_proj.weight")


def _plain(name: str, axes: tuple[str, ...], shape: tuple[int, ...], tensor: str) -> WeightSpec:
    return WeightSpec(name, axes, shape, (TensorSource(tensor, shape=shape, view=shape),))


def _product(
    name: str, axes: tuple[str, ...], shape: tuple[int, ...], tensor: str, is_transposed: bool = False
) -> WeightSpec:
    source = TensorSource(tensor, shape=shape, view=shape, is_transposed=is_transposed)
    return WeightSpec(name, axes, shape, (source,), num_in_axes=1)
