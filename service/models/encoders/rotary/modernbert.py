"""ModernBERT, and what is trained from it: gte-modernbert, nomic's modernbert-embed.

Source: Warner et al. 2024, arXiv:2412.13663; transformers `models/modernbert/configuration_modernbert.py`.
"""

from service.errors import UnsupportedModel
from service.kernels.windows import Sight
from service.models.config import HubConfig
from service.models.description import Activation, Norm, NormKind, TensorNames
from service.models.encoders.config import VectorConfig
from service.models.encoders.rotary.config import RotaryConfig, RotaryLayer
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from service.models.families.rope_parameters import read_ropes

NAMES = TensorNames(
    embed="embeddings.tok_embeddings",
    embed_norm="embeddings.norm",
    final_norm="final_norm",
    attention_norm="attn_norm",
    qkv=("attn.Wqkv",),
    output="attn.Wo",
    mlp_norm="mlp_norm",
    gate_up=("mlp.Wi",),
    down="mlp.Wo",
)


def read_config(config: HubConfig, vector: VectorConfig) -> RotaryConfig:
    """Read a `config.json` of model_type `modernbert`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    for key in ("attention_bias", "mlp_bias", "norm_bias"):
        config.refuse_unless(key, False)
    config.refuse_unless("quantization_config")
    hidden_size, num_heads = config.required_int("hidden_size"), config.required_int("num_attention_heads")
    if hidden_size % num_heads:
        message = f"hidden_size = {hidden_size} is not a multiple of num_attention_heads = {num_heads}."
        raise UnsupportedModel(config.uri, f"config.json: {message}")
    head_dim, context_len = hidden_size // num_heads, config.required_int("max_position_embeddings")
    every = config.optional_int("global_attn_every_n_layers", 3)
    num_layers = config.required_int("num_hidden_layers")
    kinds = read_layer_kinds(config, [SLIDING if layer % every else FULL for layer in range(num_layers)])
    ropes = read_ropes(config, head_dim=head_dim)
    sights = {FULL: Sight(), SLIDING: Sight(reach=config.optional_int("local_attention", 128) // 2)}
    return RotaryConfig(
        model_type=str(config.values["model_type"]),
        vocab_size=config.required_int("vocab_size"),
        hidden_size=hidden_size,
        mlp_size=config.required_int("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        context_len=context_len,
        norm=Norm(config.number("norm_eps", 1e-5), NormKind.LAYER),
        activation=config.activation("hidden_activation", Activation.GELU),
        attention_scale=head_dim**-0.5,
        # The embeddings are normalized already before the first layer.
        layers=tuple(RotaryLayer(ropes[kind], sights[kind], layer > 0) for layer, kind in enumerate(kinds)),
        names=NAMES,
        vector=vector,
    )
