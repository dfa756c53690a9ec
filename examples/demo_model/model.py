"""The shape of the demo model: a Llama of four million parameters."""

from pathlib import Path

import jax.numpy as jnp
from haliax import Axis
from levanter.compat.hf_checkpoints import HFCheckpointConverter, build_generation_config
from levanter.layers.attention import AttentionBackend
from levanter.models.llama import LlamaConfig, LlamaLMHeadModel
from levanter.trainer import TrainerConfig
from transformers import LlamaConfig as HfLlamaConfig
from transformers import PreTrainedTokenizerFast

from examples.demo_model.tokenizer import TURN_END

MAX_SEQ_LEN = 16384


def model_config() -> LlamaConfig:
    """Return Levanter's configuration of the model."""
    return LlamaConfig(
        max_seq_len=MAX_SEQ_LEN,
        hidden_dim=256,
        intermediate_dim=768,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
        gradient_checkpointing=False,  # activations fit in memory, so recomputing them would only cost time
        attn_backend=AttentionBackend.VANILLA,
    )


def vocab_axis(tokenizer: PreTrainedTokenizerFast) -> Axis:
    """Return the vocabulary axis."""
    return Axis("vocab", len(tokenizer))


def converter_for(tokenizer: PreTrainedTokenizerFast) -> HFCheckpointConverter:
    """Return the converter between Levanter and Hugging Face; without a reference checkpoint it contacts no hub."""
    return HFCheckpointConverter(
        LlamaConfig,
        reference_checkpoint=None,
        HfConfigClass=HfLlamaConfig,
        tokenizer=tokenizer,
        config_overrides={"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"},
    )


def export(model: LlamaLMHeadModel, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """Write the model as a Hugging Face checkpoint in bfloat16.

    Both the end of a turn and the end of a text stop generation.
    """
    turn_end = tokenizer.convert_tokens_to_ids(TURN_END)
    converter_for(tokenizer).save_pretrained(
        model,
        str(output),
        dtype=jnp.bfloat16,
        generation_config=build_generation_config(tokenizer, [tokenizer.eos_token_id, turn_end]),
    )


def load(checkpoint: Path, tokenizer: PreTrainedTokenizerFast) -> LlamaLMHeadModel:
    """Load an export with float32 weights.

    The path is made absolute, because Levanter takes a relative one for the name of a model on the hub.
    """
    with TrainerConfig().use_device_mesh():
        return converter_for(tokenizer).load_pretrained(
            LlamaLMHeadModel, ref=str(checkpoint.resolve()), config=model_config(), dtype=jnp.float32
        )
