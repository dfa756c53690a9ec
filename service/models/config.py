"""The geometry of a decoder, read from a Hugging Face `config.json`; no Levanter and no jax."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from service.errors import UnsupportedModel
from service.models.quantization_config import read_layer_storage
from service.models.rope import RopeConfig
from service.models.stored.layers import LayerStorage

MAX_CONFIG_INT = 2**31 - 1


@dataclass(frozen=True)
class DecoderConfig:
    """A pre-norm decoder with rotary positions, grouped heads and a gated MLP: Llama and its descendants."""

    model_type: str
    vocab_size: int
    hidden_size: int
    mlp_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_len: int  # tokens
    norm_eps: float
    has_tied_embeddings: bool
    rope: RopeConfig
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False  # Qwen3: an RMS norm over each head's query and key
    sliding_windows: tuple[int | None, ...] = field(default=())  # by layer, in tokens; None for all positions
    layer_storage: LayerStorage | None = None  # of a checkpoint whose linear layers are quantized
    kv_copies: int = 1  # consecutive key-value heads that are copies of one in the checkpoint

    @property
    def group_size(self) -> int:
        """Query heads per key-value head."""
        return self.num_heads // self.num_kv_heads

    def split_over(self, num_devices: int) -> "DecoderConfig":
        """Return the geometry in which every device has whole key-value heads, and the query heads that read them.

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

    def kv_bytes_per_token(self, vector_bytes: int, num_kv_heads: int | None = None) -> int:
        """Return the bytes of the keys and values of one token position in all layers.

        Args:
            vector_bytes: of each key or value.
            num_kv_heads: cached by one device, which may be a part of them or more; None for those of the model.
        """
        return 2 * self.num_layers * (self.num_kv_heads if num_kv_heads is None else num_kv_heads) * vector_bytes

    def sliding_window(self, layer: int) -> int | None:
        """Return the window of one layer in tokens, or None."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    def layer_traits(self, layer: int) -> int | None:
        """Return what a layer's trace follows from besides the sizes of all layers: its window."""
        return self.sliding_window(layer)


@dataclass(frozen=True)
class HubConfig:
    """A `config.json`, read key by key with errors that name the key and the file."""

    uri: str
    values: Mapping[str, Any]

    def required_int(self, key: str) -> int:
        """Return a positive integer.

        Raises:
            UnsupportedModel: the value is missing, not a positive integer, or too large for any model.
        """
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UnsupportedModel(self.uri, f"config.json: {key} is {value!r}, which should be a positive integer.")
        if value > MAX_CONFIG_INT:
            raise UnsupportedModel(self.uri, f"config.json: {key} is larger than {MAX_CONFIG_INT}.")
        return value

    def optional_int(self, key: str, default: int) -> int:
        """Return a positive integer, or the default where the key is absent or null."""
        return default if self.values.get(key) is None else self.required_int(key)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a boolean, or the default where the key is absent or null."""
        value = self.values.get(key)
        return default if value is None else bool(value)

    def refuse_unless(self, key: str, *accepted: Any) -> None:
        """Raise if the configuration asks for a feature that changes results and is not served.

        Raises:
            UnsupportedModel: the key has a value other than the accepted ones and null.
        """
        value = self.values.get(key)
        if value is not None and value not in accepted:
            shown = ", ".join(repr(a) for a in accepted)
            raise UnsupportedModel(self.uri, f"config.json: {key} = {value!r} is not served; only {shown}.")


def read_decoder(config: HubConfig, **family: Any) -> DecoderConfig:
    """Read the values that all descendants of Llama share; `family` adds those of one of them.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
        Source: https://huggingface.co/docs/transformers/model_doc/llama (LlamaConfig)
    """
    config.refuse_unless("hidden_act", "silu")
    config.refuse_unless("pretraining_tp", 1)
    hidden_size, num_heads = config.required_int("hidden_size"), config.required_int("num_attention_heads")
    num_kv_heads = config.optional_int("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModel(
            config.uri,
            f"config.json: num_attention_heads = {num_heads} is not a multiple of "
            f"num_key_value_heads = {num_kv_heads}.",
        )
    head_dim = config.optional_int("head_dim", hidden_size // num_heads)
    context_len = config.required_int("max_position_embeddings")
    return DecoderConfig(
        model_type=str(config.values["model_type"]),
        vocab_size=config.required_int("vocab_size"),
        hidden_size=hidden_size,
        mlp_size=config.required_int("intermediate_size"),
        num_layers=config.required_int("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_len=context_len,
        norm_eps=float(config.values.get("rms_norm_eps", 1e-6)),
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        layer_storage=read_layer_storage(config.uri, config.values),
        rope=RopeConfig.from_hub(config.uri, config.values, head_dim=head_dim, context_len=context_len),
        **family,
    )


def read_sliding_windows(config: HubConfig, num_layers: int, *, first_layer: int) -> tuple[int | None, ...]:
    """Return each layer's window: by `layer_types` if the configuration has them, otherwise from `first_layer` on."""
    if config.values.get("sliding_window") is None:
        return ()
    window = config.required_int("sliding_window")
    layer_types = config.values.get("layer_types")
    if layer_types is None:
        return tuple(window if layer >= first_layer else None for layer in range(num_layers))
    if len(layer_types) != num_layers or set(layer_types) - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(
            config.uri,
            f"config.json: layer_types must name full_attention or sliding_attention for each of {num_layers} layers.",
        )
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
