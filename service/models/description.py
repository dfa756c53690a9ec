"""A decoder described by data: what its parts are, and nothing about how they are computed; no jax.

A family is a reader that makes such a description of a configuration. Layers of equal description have equal traces,
so they share executables.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from service.models.rope import RopeConfig
from service.models.stored.layers import LayerStorage


class Activation(StrEnum):
    """A non-linearity."""

    GELU = "gelu"  # exact, by the error function
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    SILU = "silu"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    RELU_SQUARED = "relu_squared"
    XIELU = "xielu"  # with two parameters that are learned
    CLAMPED_SWIGLU = "clamped_swiglu"  # of a gate and what it multiplies
    NONE = "none"


class NormKind(StrEnum):
    """What a vector is divided by."""

    RMS = "rms"  # the root of its mean square
    LAYER = "layer"  # its standard deviation, after its mean is subtracted


@dataclass(frozen=True)
class Norm:
    """A normalization of vectors, computed in float32."""

    eps: float
    kind: NormKind = NormKind.RMS
    is_plus_one: bool = False  # whether the scale is one more than its weight
    is_scaled_wide: bool = False  # whether the result is multiplied by the scale before it is rounded
    has_weight: bool = True
    has_bias: bool = False
    gate_rank: int = 0  # of the product of two matrices that gates the result; 0 for no gate


@dataclass(frozen=True)
class Attention:
    """Causal attention with grouped heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float  # factor of the product of a query and a key
    rotation: RopeConfig | None  # of queries and keys; None leaves them as they are
    window: int | None = None  # visible positions, the token's own included; None for all
    soft_cap: float | None = None  # scores are squeezed into (-soft_cap, soft_cap)
    has_bias: bool = False  # of queries, keys and values
    has_key_bias: bool = True  # whether keys have one where queries and values do
    has_output_bias: bool = False
    qk_norm: Norm | None = None  # of queries and of keys, before the rotation
    is_qk_norm_whole: bool = False  # whether it is over all heads together, and not over each
    has_sinks: bool = False  # whether a score of each query head takes its share of the softmax for nothing
    has_wide_gates: bool = False  # whether the queries' projection gives a gate of each element of the result, too
    has_gates: bool = False  # whether a number of each query head, computed of the layer's input, multiplies its result
    most_gate: float = 2.0  # of those numbers
    is_exclusive: bool = False  # whether a result loses what it has in the direction of its token's own value
    has_values: bool = True  # whether values have a projection; otherwise they are the keys before their norm
    value_norm: Norm | None = None
    looks_ahead: bool = True  # whether the rows of a picture see each other, of a model in which they do
    shares_cache: bool = False  # whether keys and values are those of the last layer that has its own and this window
    stored_kv_heads: int | None = None  # of which the first are used, where a checkpoint has more; None for as many
    kv_copies: int = 1  # consecutive key-value heads that are copies of one in the checkpoint

    @property
    def group_size(self) -> int:
        """Query heads per key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def query_rows(self) -> int:
        """What the projection of queries gives per key-value head, in vectors of a head's size."""
        return self.group_size * (2 if self.has_wide_gates else 1)

    def split_over(self, num_devices: int) -> "Attention":
        """Return the attention in which every device has whole key-value heads, and the query heads that read them.

        If there are fewer key-value heads than devices, each is copied as often as needed, and its query heads are
        distributed among the copies in order, which does not change the results. On 4 devices,

            query head       0  1  2  3    4  5  6  7
            key-value head   0  0  0  0    1  1  1  1     2 heads with 4 query heads each
            becomes          0  0  0' 0'   1  1  1' 1'    4 heads with 2 query heads each; ' a copy

        The copies cost the memory of their weights and of their part of the cache. The number of devices must divide
        the number of query heads.
        """
        copies = num_devices // math.gcd(num_devices, self.num_kv_heads)
        assert self.group_size % copies == 0, "the number of devices was chosen to divide the query heads"
        return replace(self, num_kv_heads=self.num_kv_heads * copies, kv_copies=self.kv_copies * copies)


@dataclass(frozen=True)
class ShortConvolution:
    """A causal convolution of each channel by itself, between two gates; its state is the inputs of the last taps.

    A projection gives each token three vectors. The first gates what is convolved, the second gates the result.
    Source: Liquid AI 2025, arXiv:2511.23404 (LFM2).
    """

    width: int  # taps, the token's own included
    num_channels: int
    has_bias: bool = False  # of the projections and of the convolution

    @property
    def split_sizes(self) -> dict[str, int]:
        """The sizes that a number of devices must divide, by their names in a configuration."""
        return {"hidden_size": self.num_channels}

    def state_bytes(self, activation_bytes: int, num_devices: int = 1) -> int:
        """Return the size of each device's part of a sequence's state, given that of an element of activations."""
        return (self.width - 1) * self.num_channels * activation_bytes // num_devices


@dataclass(frozen=True)
class BranchConvolutions:
    """Causal convolutions within the branches of a layer, of each channel by itself: of keys, and of what branches add.

    Keys are convolved before their norm, results before they are added. The state is the inputs of the last taps but
    one of each convolution. Every device has those of results whole, as it has the results.
    Source: Levanter `models/hero_model.py` (HeroBlock, ShortConv).
    """

    width: int  # taps, the token's own included
    key_channels: int  # 0 for no convolution of keys
    attention_channels: int  # of what attention adds; 0 for none
    feed_forward_channels: int  # of what the feed-forward adds; 0 for none

    @property
    def channels(self) -> dict[str, int]:
        """The channels of each convolution that there is, by what is convolved."""
        of_each = {
            "key": self.key_channels,
            "attention": self.attention_channels,
            "feed_forward": self.feed_forward_channels,
        }
        return {name: size for name, size in of_each.items() if size}

    @property
    def split_sizes(self) -> dict[str, int]:
        """The sizes that a number of devices must divide: none, since keys are split as heads are."""
        return {}

    def state_bytes(self, activation_bytes: int, num_devices: int = 1) -> int:
        """Return the size of each device's part of a sequence's state, given that of an element of activations."""
        num_channels = self.key_channels // num_devices + self.attention_channels + self.feed_forward_channels
        return (self.width - 1) * num_channels * activation_bytes


@dataclass(frozen=True)
class GatedDelta:
    """Heads whose state is a matrix, which each token decays, corrects towards its value, and reads; see `run_delta`.

    Queries, keys and values come from a projection and a causal convolution. What is read is normalized by head and
    gated. The state is this matrix, in float32, and the inputs of the convolution's last taps but one.
    Source: Yang et al. 2024, arXiv:2412.06464.
    """

    num_key_heads: int
    num_value_heads: int  # a multiple; those of one key head follow each other
    key_dim: int  # of a head
    value_dim: int  # of a head
    width: int  # taps of the convolution, the token's own included
    norm: Norm  # of what a head reads
    most_share: float = 1.0  # of a correction; a token's share of it is between 0 and 1

    @property
    def group_size(self) -> int:
        """Value heads per key head."""
        return self.num_value_heads // self.num_key_heads

    @property
    def head_channels(self) -> int:
        """The channels of a key head that are convolved: its query, its key, and its values."""
        return 2 * self.key_dim + self.group_size * self.value_dim

    @property
    def num_channels(self) -> int:
        """The channels that are convolved."""
        return self.num_key_heads * self.head_channels

    @property
    def result_size(self) -> int:
        """The width of what all heads read."""
        return self.num_value_heads * self.value_dim

    @property
    def split_sizes(self) -> dict[str, int]:
        """The sizes that a number of devices must divide, by their names in a configuration."""
        return {"linear_num_key_heads": self.num_key_heads}

    def state_bytes(self, activation_bytes: int, num_devices: int = 1) -> int:
        """Return the size of each device's part of a sequence's state, given that of an element of activations."""
        matrices = 4 * self.num_value_heads * self.key_dim * self.value_dim
        return (matrices + (self.width - 1) * self.num_channels * activation_bytes) // num_devices


@dataclass(frozen=True)
class StateSpaceFactors:
    """Numbers that multiply the parts of a projection, as muP sets them."""

    input: float = 1.0  # what is projected
    gates: float = 1.0
    values: float = 1.0
    writes: float = 1.0
    reads: float = 1.0
    steps: float = 1.0


@dataclass(frozen=True)
class StateSpace:
    """Mamba-2: heads whose state is a matrix, which each token decays, adds to, and reads; see `run_ssd`.

    A projection gives the gates of results, what is convolved (the values of the heads, and the vectors B and C of each
    group), and the step of each head. The state is this matrix, in float32, and the inputs of the convolution's last
    taps but one.
    Source: Dao & Gu 2024, arXiv:2405.21060.
    """

    num_heads: int
    num_groups: int  # of heads that follow each other and share B and C
    head_dim: int
    state_dim: int
    width: int  # taps of the convolution, the token's own included
    norm: Norm | None  # of what the heads of a group read together
    is_norm_gated: bool = True  # whether results are gated before the norm, and not after it
    has_bias: bool = False  # of the projection
    has_output_bias: bool = False
    has_taps_bias: bool = True
    least_step: float = 0.0
    most_step: float = math.inf
    factors: StateSpaceFactors = StateSpaceFactors()

    @property
    def group_size(self) -> int:
        """Heads per group."""
        return self.num_heads // self.num_groups

    @property
    def group_width(self) -> int:
        """The width of what the heads of a group read."""
        return self.group_size * self.head_dim

    @property
    def group_channels(self) -> int:
        """The channels of a group that are convolved: the values of its heads, B, and C."""
        return self.group_width + 2 * self.state_dim

    @property
    def num_channels(self) -> int:
        """The channels that are convolved."""
        return self.num_groups * self.group_channels

    @property
    def result_size(self) -> int:
        """The width of what all heads read."""
        return self.num_heads * self.head_dim

    @property
    def split_sizes(self) -> dict[str, int]:
        """The sizes that a number of devices must divide, by their names in a configuration."""
        return {"mamba_n_groups": self.num_groups}

    def state_bytes(self, activation_bytes: int, num_devices: int = 1) -> int:
        """Return the size of each device's part of a sequence's state, given that of an element of activations."""
        matrices = 4 * self.num_heads * self.head_dim * self.state_dim
        return (matrices + (self.width - 1) * self.num_channels * activation_bytes) // num_devices


@dataclass(frozen=True)
class FeedForward:
    """A projection up, a non-linearity, and a projection down."""

    size: int
    activation: Activation
    is_gated: bool = True  # whether the result of the non-linearity multiplies a second projection up
    has_bias: bool = False
    gate_multiplier: float = 1.0  # of what the non-linearity is applied to

    @property
    def widths(self) -> tuple[int, ...]:
        """The sizes that several devices split, each of which is the length of rows too."""
        return (self.size,)


class RouterScores(StrEnum):
    """What becomes of the router's logits."""

    SOFTMAX = "softmax"  # over all experts
    SIGMOID = "sigmoid"


class RouterBias(StrEnum):
    """What the bias of the router's logits changes."""

    CHOICE = "choice"  # which experts are chosen, and not their weights
    CHOICE_BY_SCORE = "choice_by_score"  # the same, but it is added to what becomes of the logits
    BOTH = "both"


@dataclass(frozen=True)
class Latent:
    """A projection of what experts read to another width, and one of their weighted sum back."""

    size: int
    has_bias: bool = False
    norm: Norm | None = None  # of what the experts read, after the projection


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: a router chooses some feed-forwards for each token, and weighs their results."""

    num_experts: int
    top_k: int  # experts of a token
    expert: FeedForward
    scores: RouterScores = RouterScores.SOFTMAX
    weight_sum: float | None = 1.0  # of the chosen experts' weights; None leaves the scores as they are
    weight_sum_eps: float = 0.0  # added to the sum that the weights are divided by
    weight_multiplier: float = 1.0  # of the weights, after that
    bias: RouterBias | None = None  # None for a router without one
    shared: FeedForward | None = None  # of every token, its result added
    num_shared: int = 1  # feed-forwards in the checkpoint that are this one, side by side
    has_shared_gate: bool = False  # whether a number of each token, computed of its input, multiplies that result
    is_interleaved: bool = False  # whether the rows of an expert's two projections up alternate in their tensor
    router_norm: Norm | None = None  # of what the router reads, which is then divided by the root of its width
    latent: Latent | None = None  # None for experts that read and give the width of the model
    has_expert_scales: bool = False  # whether a number that is learned of each expert multiplies its weight

    @property
    def widths(self) -> tuple[int, ...]:
        """The sizes that several devices split, each of which is the length of rows too."""
        return (*self.expert.widths, *(() if self.shared is None else self.shared.widths))


@dataclass(frozen=True)
class ExpertsBeside:
    """A mixture of experts that reads a layer's residual stream beside its feed-forward, and is added to its result."""

    experts: Experts
    norm: Norm  # of what the experts read; the router reads the stream itself
    post_norm: Norm
    feed_forward_post_norm: Norm  # of what is added to


@dataclass(frozen=True)
class PerLayerInput:
    """A branch at the end of a layer: a projection down, whose activation multiplies the layer's own input."""

    size: int  # of a layer's input
    activation: Activation
    post_norm: Norm  # of the projection back up


@dataclass(frozen=True)
class PerLayerEmbeddings:
    """What gives each layer an input of its own: an embedding of the token, and a projection of the model's."""

    vocab_size: int
    size: int  # of the input of one layer
    norm: Norm  # of the projection
    media_token_id: int = 0  # whose embedding the rows of media have


type State = ShortConvolution | GatedDelta | StateSpace | BranchConvolutions


@dataclass(frozen=True)
class Layer:
    """Attention and feed-forward, each a residual branch: its input and its result may be normalized.

    In place of attention, or beside it on the same input, there may be a recurrent part, which keeps a state of one
    size for each sequence; or the branches convolve, which keeps one, too. Either branch may be missing. With memory, a
    branch between the two attends to the output of an encoder.
    """

    attention: Attention | None
    feed_forward: FeedForward | Experts | None
    attention_norm: Norm | None
    mlp_norm: Norm | None
    attention_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None
    beside: ExpertsBeside | None = None
    per_layer_input: PerLayerInput | None = None
    residual_multiplier: float = 1.0  # of every branch
    has_output_scale: bool = False  # whether a number that is learned multiplies what leaves the layer
    memory_attention: Attention | None = None
    memory_norm: Norm | None = None
    state: State | None = None
    attention_input_multiplier: float = 1.0
    attention_multiplier: float = 1.0  # of the result of attention
    state_multiplier: float = 1.0  # of the result of the recurrent part
    feed_forward_multiplier: float = 1.0  # of the result of the feed-forward
    # Of the embedding that attention reads before the hidden states, side by side; None where it reads these alone.
    embedding_norm: Norm | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """The sizes of its feed-forwards that several devices split, each of which is the length of rows too."""
        own = () if self.feed_forward is None else self.feed_forward.widths
        return (*own, *(() if self.beside is None else self.beside.experts.widths))


@dataclass(frozen=True)
class TensorNames:
    """A family's tensors, without `.weight` and `.bias`; from `attention_norm` on those of a layer."""

    embed: str
    final_norm: str
    attention_norm: str
    qkv: tuple[str, ...]  # one tensor, or those of queries, keys and values
    output: str
    mlp_norm: str
    gate_up: tuple[str, ...]  # one tensor, or those of the part with the activation and of the other
    down: str
    activation: str | None = None  # the prefix of the parameters of one that is learned
    positions: str | None = None  # learned embeddings
    embed_norm: str | None = None  # `prefix` does not precede it
    query_norm: str | None = None
    key_norm: str | None = None
    attention_post_norm: str | None = None
    mlp_post_norm: str | None = None
    router: str | None = None
    router_bias: str | None = None  # the whole name; without it, the bias of `router`
    expert_gate_up: tuple[str, ...] = ()  # as `gate_up`, and `{}` is an expert's number; without it all are stacked
    expert_down: str | None = None
    has_transposed_experts: bool = False  # whether the weights of experts are stored [in, out]
    shared_gate_up: tuple[
        str, ...
    ] = ()  # of the expert that all tokens share, where `gate_up` is a layer's without any
    shared_down: str | None = None
    shared_gate: str | None = None
    latent: tuple[str, str] = ("", "")  # the projection down and the one up
    latent_norm: str | None = None
    sinks: str | None = None
    head_gates: str | None = None
    output_scale: str | None = None
    router_norm: str | None = None  # the whole name of its scale
    expert_scales: str | None = None
    beside_norm: str | None = None
    beside_post_norm: str | None = None
    feed_forward_post_norm: str | None = None
    embedding_norm: str | None = None
    per_layer_gate: str | None = None
    per_layer_projection: str | None = None
    per_layer_post_norm: str | None = None
    per_layer_embed: str | None = None  # of the model, as are the two that follow
    per_layer_model_projection: str | None = None
    per_layer_norm: str | None = None
    also: tuple[tuple[str, str], ...] = ()  # norms of a layer, and what some files call each
    norm_gates: tuple[tuple[str, str], ...] = ()  # norms, and the prefix of the two matrices of each one's gate
    # One tensor; or those of what is convolved and of the gates of results; or of queries, keys, values and gates. Of
    # Mamba-2 it is one, which has the steps too.
    state_in: tuple[str, ...] = ()
    state_gates: tuple[str, ...] = ()  # one tensor, or those of the shares and of the decays
    state_decay: str | None = None  # the whole name of the logarithms of the decays
    state_decay_bias: str | None = None  # the whole name
    state_skip: str | None = None  # the whole name of what inputs are multiplied by and added
    state_norm: str | None = None
    state_convolution: tuple[str, ...] = ()  # one tensor, or those of queries, keys and values
    state_out: str | None = None
    # Convolutions within branches, stored [tap, channel], the token's own first: of keys, of what attention adds, and
    # of what the feed-forward adds.
    branch_taps: tuple[str, str, str] = ("", "", "")
    memory_norm: str | None = None
    memory_qkv: tuple[str, ...] = ()
    memory_output: str | None = None
    prefix: str = ""  # of all but the head
    layers: str = "layers"
    head: str = "lm_head"
    has_transposed_products: bool = False  # whether the weights of layers are stored [in, out]

    def of_layer(self, layer: int) -> str:
        """Return the prefix of a layer's tensors."""
        return f"{self.prefix}{self.layers}.{layer}."


ENCODER_PREFIX = "encoder."  # of the names of an encoder's weights


@dataclass(frozen=True)
class SpeechEncoder:
    """The encoder of a window of sound: two convolutions, sinusoidal positions, and layers that look both ways.

    The second convolution halves the number of positions.
    """

    num_mels: int  # features of a frame
    num_positions: int  # of the output; half the frames of a window
    hidden_size: int
    layers: tuple[Layer, ...]
    final_norm: Norm
    names: TensorNames

    @property
    def num_frames(self) -> int:
        """The frames of a window, of 10 ms each."""
        return 2 * self.num_positions


@dataclass(frozen=True)
class ImageEncoder:
    """The encoder of a square picture: patches with learned positions, layers that look both ways, and a projection.

    A square of neighbouring patches is projected to one row, which takes the place of a token's embedding: the patches
    side by side, or their mean.
    """

    image_size: int  # pixels of an edge
    patch_size: int  # pixels of an edge
    merge_size: int  # patches of an edge of what is one row
    hidden_size: int
    layers: tuple[Layer, ...]
    final_norm: Norm
    names: TensorNames
    projection: str  # its tensor
    token_id: int  # that stands for a row in a prompt
    mean_norm: Norm | None = None  # of the mean of a square's patches, which is projected; None: they are side by side
    mean_norm_tensor: str | None = None
    has_rounded_positions: bool = False  # whether positions are found as fractions of an edge, some of which round down
    sees_itself: bool = False  # whether the rows of a picture see each other in the decoder, those behind them too
    around: tuple[int, int] | None = None  # tokens before and after a picture's rows; a template writes only the first

    @property
    def merged_size(self) -> int:
        """The values that a row is projected from."""
        return self.hidden_size * (self.merge_size**2 if self.mean_norm is None else 1)

    @property
    def num_patches(self) -> int:
        """Patches of an edge; what is left over at the end is not seen."""
        return self.image_size // self.patch_size

    @property
    def num_rows(self) -> int:
        """Rows of a picture."""
        return (self.num_patches // self.merge_size) ** 2


class PatchTurns(StrEnum):
    """How the row and the column of a patch turn the pairs of a head's dimensions: one half of them each."""

    EQUAL = "equal"  # with the same frequencies
    ALTERNATING = "alternating"  # with every second frequency of a head, rows beginning
    APART = "apart"  # each in a half of the head that has pairs of its own, with the same frequencies, columns first


@dataclass(frozen=True)
class Merger:
    """The way from the patches of a square, side by side, to a row: two projections, a non-linearity between them."""

    norm: Norm  # of each patch
    activation: Activation
    has_bias: bool
    prefix: str  # of its tensors
    up: str
    down: str
    first: str | None = None  # of a projection before them, to the size of a patch; None for none


@dataclass(frozen=True)
class Pooler:
    """The way from the patches of a square to a row: their mean times the root of the hidden size, and a projection."""

    norm: Norm  # of what is projected
    projection: str  # its tensor
    standard: tuple[str, str] | None = None  # tensors of what is subtracted before the norm, and then multiplied


@dataclass(frozen=True)
class PatchEncoder:
    """The encoder of a picture of any shape: patches with positions in two dimensions, and layers that look both ways.

    A square of neighbouring patches becomes one row. The rows after some of the layers are added to the hidden states
    of the decoder's first layers.
    """

    patch_size: int  # pixels of an edge
    merge_size: int  # patches of an edge of what is one row
    hidden_size: int
    layers: tuple[Layer, ...]
    theta: float  # base of the rotation by row and column
    rows: Merger | Pooler
    names: TensorNames
    token_id: int  # that stands for a row in a prompt
    usual_rows: int | None = None  # the most of a picture, unless the operator says otherwise; None for no such number
    turns: PatchTurns = PatchTurns.EQUAL
    num_frames: int = 0  # that a patch has weights for, all of which a picture fills; 0: weights know no frames
    has_patch_bias: bool = False
    has_channels_last: bool = False  # whether the weights of a patch are by row, column and channel
    has_limits: bool = False  # whether what layers multiply by their weights, and the products, stay within limits
    first_norm: Norm | None = None  # of patches, before the layers
    num_positions: int = 0  # learned, of an edge; those of a picture lie between them; 0 for none
    has_position_tables: bool = False  # whether a column and a row have each a learned position, and the patch the sum
    taps: tuple[int, ...] = ()  # layers after which rows are made, too
    pixel_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)  # of red, green and blue between 0 and 1
    pixel_deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)
    has_grid: bool = False  # whether the decoder's positions are those of time, row and column
    has_lines: bool = False  # whether a token ends each line of rows in a prompt
    sees_itself: bool = False  # whether the rows of a picture see each other in layers of the decoder that look ahead
    around: tuple[int, int] | None = None  # tokens before and after a picture's rows, of which a template writes none

    @property
    def num_rows(self) -> int:
        """Rows of a picture; 0 if that depends on the picture."""
        return 0


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder: embeddings, layers, and the way from hidden states to logits."""

    model_type: str
    vocab_size: int
    hidden_size: int
    context_len: int  # tokens
    layers: tuple[Layer, ...]
    final_norm: Norm
    has_tied_embeddings: bool
    names: TensorNames
    layer_storage: LayerStorage | None = None  # of a checkpoint whose linear layers are quantized
    num_positions: int = 0  # that have a learned embedding; 0 if the model has none
    embed_norm: Norm | None = None
    embed_multiplier: float = 1.0  # rounded to the dtype of activations
    logits_multiplier: float = 1.0
    logits_soft_cap: float | None = None  # logits are squeezed into (-logits_soft_cap, logits_soft_cap)
    per_layer_embeddings: PerLayerEmbeddings | None = None
    speech_encoder: SpeechEncoder | None = None  # whose output is the memory of the layers
    image_encoder: ImageEncoder | PatchEncoder | None = None  # whose rows take the places of tokens

    @property
    def media_encoder(self) -> SpeechEncoder | ImageEncoder | PatchEncoder | None:
        """The encoder of audio or images."""
        return self.speech_encoder or self.image_encoder

    @property
    def looks_ahead(self) -> bool:
        """Whether some tokens, which are those of a picture, see others after them."""
        return self.image_encoder is not None and self.image_encoder.sees_itself

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of each layer that has one."""
        return tuple(layer.attention for layer in self.layers if layer.attention is not None)

    @property
    def storing_layers(self) -> range:
        """The layers whose keys and values are cached: all before the first that shares those of another."""
        shares = (layer.attention is not None and layer.attention.shares_cache for layer in self.layers)
        return range(next((number for number, is_shared in enumerate(shares) if is_shared), self.num_layers))

    def producer_of(self, window: int | None) -> int:
        """Return the layer whose keys and values are those of the layers that share them and have a window."""
        attentions = enumerate(layer.attention for layer in self.layers[: len(self.storing_layers)])
        return max(number for number, attention in attentions if attention and attention.window == window)

    @property
    def heads(self) -> Attention:
        """The attention of the first layer that has one, for a model whose layers agree in what is asked."""
        return self.attentions[0]

    def state_bytes(self, activation_bytes: int, num_devices: int = 1) -> int:
        """Return the size of each device's part of a sequence's states in all layers, given that of an activation."""
        states = (layer.state for layer in self.layers if layer.state is not None)
        return sum(state.state_bytes(activation_bytes, num_devices) for state in states)

    @property
    def head_sizes(self) -> tuple[tuple[int, int], ...]:
        """The numbers of key-value heads and the dimensions of a head that layers have, each pair once."""
        return tuple(dict.fromkeys((attention.num_kv_heads, attention.head_dim) for attention in self.attentions))

    @property
    def rotations(self) -> tuple[RopeConfig, ...]:
        """The rotations of all layers, each once."""
        rotations = (attention.rotation for attention in self.attentions)
        return tuple(dict.fromkeys(rotation for rotation in rotations if rotation is not None))

    @property
    def split_sizes(self) -> dict[str, int]:
        """The sizes that a number of devices must divide, by their names in a configuration."""
        widths = [width for layer in self.layers for width in layer.widths]
        num_heads = math.gcd(*(attention.num_heads for attention in self.attentions))
        sizes = {"num_attention_heads": num_heads, "intermediate_size": math.gcd(*widths)}
        for state in {layer.state: None for layer in self.layers if layer.state is not None}:
            sizes |= {name: math.gcd(size, sizes.get(name, 0)) for name, size in state.split_sizes.items()}
        return sizes

    @property
    def longest_row(self) -> int:
        """The most products that an element of a layer's matrix product sums."""
        widths = {width for layer in self.layers for width in layer.widths}
        attended = (attention.num_heads * attention.head_dim for attention in self.attentions)
        states = (layer.state for layer in self.layers)
        read = (state.result_size for state in states if isinstance(state, GatedDelta | StateSpace))
        return max(self.hidden_size, *attended, *read, *widths)

    def split_over(self, num_devices: int) -> "DecoderConfig":
        """Return the description in which every device has whole key-value heads; see `Attention.split_over`."""
        return replace(self, layers=tuple(_split(layer, num_devices) for layer in self.layers))

    def kv_bytes_per_token(self, position_bytes: Callable[[Attention], int]) -> int:
        """Return the bytes of the keys and values of one token position in all layers.

        Args:
            position_bytes: returns the bytes of the keys of one position of a layer, which are those of its values.
        """
        return sum(self.kv_bytes_by_window(position_bytes).values())

    def kv_bytes_by_window(self, position_bytes: Callable[[Attention], int]) -> dict[int | None, int]:
        """Return the same of the layers with each window, and of those without one."""
        found: dict[int | None, int] = {}
        for attention in self.attentions:
            if not attention.shares_cache:
                found[attention.window] = found.get(attention.window, 0) + 2 * position_bytes(attention)
        return found


def _split(layer: Layer, num_devices: int) -> Layer:
    if layer.attention is None:
        return layer
    attention, state = layer.attention.split_over(num_devices), layer.state
    if isinstance(state, BranchConvolutions):
        state = replace(state, key_channels=state.key_channels // layer.attention.num_kv_heads * attention.num_kv_heads)
    return replace(layer, attention=attention, state=state)


def describe_differences(one: DecoderConfig, other: DecoderConfig) -> dict[str, str]:
    """Return in what two descriptions differ: each field with its first pair of values, as text."""
    found: dict[str, str] = {}
    _compare(asdict(one), asdict(other), "", found)
    return found


def _compare(one: Any, other: Any, path: str, found: dict[str, str]) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            _compare(one.get(key), other.get(key), f"{path}.{key}" if path else str(key), found)
    elif isinstance(one, tuple | list) and isinstance(other, tuple | list) and len(one) == len(other):
        for first, second in zip(one, other, strict=True):
            _compare(first, second, path, found)
    elif one != other:
        found.setdefault(path, f"{one} and not {other}")
