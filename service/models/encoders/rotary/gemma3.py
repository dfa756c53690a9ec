"""EmbeddingGemma: the text model of Gemma 3 with attention to both sides.

Source: Vera et al. 2025, arXiv:2509.20354; transformers `models/gemma3/configuration_gemma3.py`.
"""

from dataclasses import replace

from service.kernels.windows import Sight
from service.models.config import HubConfig
from service.models.description import Activation
from service.models.encoders.config import VectorConfig
from service.models.encoders.rotary.config import RotaryConfig, RotaryLayer
from service.models.families.gemma import gemma_norm
from service.models.families.gemma3_text import NAMES, read_gemma3_kinds
from service.models.families.layer_kinds import FULL, SLIDING
from service.models.families.rope_parameters import read_ropes


def read_config(config: HubConfig, vector: VectorConfig) -> RotaryConfig:
    """Read a `config.json` of model_type `gemma3_text`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("attention_bias", False)
    config.refuse_unless("quantization_config")
    config.refuse_unless("attn_logit_softcapping")
    hidden_size, num_heads = config.required_int("hidden_size"), config.required_int("num_attention_heads")
    head_dim, context_len = config.optional_int("head_dim", 256), config.required_int("max_position_embeddings")
    kinds, ropes = read_gemma3_kinds(config), read_ropes(config, head_dim=head_dim)
    window, is_two_sided = config.optional_int("sliding_window", 4096), config.flag("use_bidirectional_attention")
    is_causal = not is_two_sided and config.flag("is_causal", default=True)
    # A causal window counts the token itself; the family's own key halves it for each side, the other key does not.
    reach = window // 2 if is_two_sided else window - is_causal
    sights = {FULL: Sight(is_causal), SLIDING: Sight(is_causal, reach)}
    return RotaryConfig(
        model_type=str(config.values["model_type"]),
        vocab_size=config.required_int("vocab_size"),
        hidden_size=hidden_size,
        mlp_size=config.required_int("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=config.optional_int("num_key_value_heads", num_heads),
        head_dim=head_dim,
        context_len=context_len,
        norm=gemma_norm(config),
        activation=config.activation("hidden_activation", Activation.GELU_TANH),
        attention_scale=config.optional_int("query_pre_attn_scalar", 256) ** -0.5,
        layers=tuple(RotaryLayer(ropes[kind], sights[kind]) for kind in kinds),
        names=replace(NAMES, prefix=""),
        vector=vector,
        embed_scale=hidden_size**0.5,
    )
