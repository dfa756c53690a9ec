"""A run is served as Levanter computes it: our logits equal those of Levanter's forward, with its own options too."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.checkpoint.levanter import decode_config, one_device_mesh, run_values
from service.device.mesh import DeviceMesh
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.weights.assembly import assemble_weights
from service.weights.headers import check_tensors
from tests.levanter_run import implicit_promotion, levanter_logits
from tests.parity.cases import NUM_TOKENS, VOCAB_SIZE
from tests.parity.family_cases import draw
from tests.parity.test_reference_logits import logits_by_chunk
from tests.tolerances import SAME_MODEL_ATOL

SIZES = {"hidden_dim": 32, "num_layers": 2, "num_heads": 4, "max_seq_len": 64}
GATED = {**SIZES, "intermediate_dim": 48, "num_kv_heads": 2}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
RUNS: dict[str, dict[str, Any]] = {
    "llama_with_more_norms": {
        **{"type": "llama", **GATED, "hybrid_norm": True, "input_embedding_norm": True, "use_qk_norm": True},
        **{"use_bias": True, "head_dim": 16, "activation_function": "gelu_new", "rope": YARN},
    },
    "llama_without_scales": {
        **{"type": "llama", **GATED, "use_layer_norm_weight": False, "activation_function": "relu2"},
        **{"tie_word_embeddings": True, "rope": {"type": "linear", "factor": 2.0}},
    },
    "mistral": {"type": "mistral", **GATED, "sliding_window": 8},
    "qwen": {"type": "qwen", **GATED},
    "qwen3": {"type": "qwen3", **GATED, "head_dim": 16, "use_sliding_window": True, "sliding_window": 8},
    "mixtral": {"type": "mixtral", **GATED, "n_routed_experts": 6, "n_shared_experts": 1, "sliding_window": 8},
    "qwen3_moe": {
        **{"type": "qwen3_moe", **GATED, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3},
        **{"moe_intermediate_dim": 24, "norm_topk_prob": False},
    },
    "gemma": {"type": "gemma", **GATED},
    "gemma2": {"type": "gemma2", **GATED, "attn_logit_softcapping": 2.0, "sliding_window": 8},
    "gemma3": {"type": "gemma3", **GATED, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "olmo2": {"type": "olmo2", **GATED, "attention_bias": True},
    "olmo3": {"type": "olmo3", **GATED, "num_layers": 4, "sliding_window": 8, "head_dim": 16},
    "apertus": {"type": "apertus", **GATED},
    "gpt2": {"type": "gpt2", **SIZES, "scale_attn_by_inverse_layer_idx": True},
    "snowball": {
        **{"type": "snowball", **GATED, "num_layers": 5, "head_dim": 16, "sliding_window": 8, "num_experts": 6},
        **{"num_experts_per_token": 2, "shared_expert_intermediate_dim": 40, "qk_mult": 1.5},
    },
}

# Importing Levanter takes ten seconds of a processor, so one worker runs all that does.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("levanter")]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_says_what_levanters_forward_says(name):
    from haliax import Axis
    from haliax.state_dict import from_torch_compatible_state_dict, to_torch_compatible_state_dict

    config, vocab = decode_config(RUNS[name]), Axis("vocab", VOCAB_SIZE)
    mesh = one_device_mesh(config)
    with implicit_promotion(), jax.set_mesh(mesh):
        initial = config.build(vocab, key=jax.random.PRNGKey(0))
        stored = to_torch_compatible_state_dict(initial)
    kind = str(RUNS[name]["type"])
    tensors = {tensor: draw(kind, tensor, array.shape) for tensor, array in stored.items()}
    with implicit_promotion(), jax.set_mesh(mesh):
        theirs = from_torch_compatible_state_dict(initial, {key: jnp.asarray(value) for key, value in tensors.items()})
        token_ids = np.random.RandomState(7).randint(0, VOCAB_SIZE, NUM_TOKENS).astype(np.int32)
        expected = levanter_logits(theirs, token_ids)

    ours = Decoder(read_config("test", run_values(config, VOCAB_SIZE)))
    check_tensors("test", ours.weight_specs(), {key: value.shape for key, value in tensors.items()})
    weights = assemble_weights(ours.weight_specs(), tensors, mesh=DeviceMesh((jax.devices()[0],)))
    for chunk in (NUM_TOKENS, 1):
        got = logits_by_chunk(ours, weights, token_ids, chunk)
        np.testing.assert_allclose(got, expected, atol=SAME_MODEL_ATOL, rtol=0)
