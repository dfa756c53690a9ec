"""Levanter's own inference server, over HTTP as ours is.

    python -m benchmarks.peers.levanter CHECKPOINT PORT

It may hold what our service may hold: 32 sequences of 1,024 tokens, in float32; all else is as it comes. It waits 0.1 s
for more requests before a batch begins; that is its default, and part of its answer time.
"""

import sys


def serve(checkpoint: str, port: int, *, max_sequences: int = 32, context_tokens: int = 1024) -> None:
    """Load a Hugging Face checkpoint and serve it until the process ends."""
    import haliax
    import jax.numpy as jnp
    import jmp
    from levanter.compat.hf_checkpoints import HFCheckpointConverter
    from levanter.inference.engine import InferenceEngineConfig
    from levanter.inference.openai import InferenceServer, InferenceServerConfig
    from levanter.models.llama import LlamaConfig
    from levanter.tokenizers import load_tokenizer
    from levanter.trainer import TrainerConfig

    tokenizer = load_tokenizer(checkpoint)
    converter: HFCheckpointConverter = LlamaConfig().hf_checkpoint_converter(ref_checkpoint=checkpoint)
    converter = converter.replaced(tokenizer=tokenizer)
    engine = InferenceEngineConfig(
        max_seq_len=context_tokens,
        max_seqs=max_sequences,
        max_pages=max_sequences * context_tokens // 128,
        compute_dtype=jnp.float32,
    )
    trainer = TrainerConfig(mp=jmp.get_policy("f32"))
    config = InferenceServerConfig(trainer=trainer, service=engine, host="127.0.0.1", port=port, model_name="levanter")
    with haliax.partitioning.set_mesh(trainer.device_mesh), haliax.axis_mapping(trainer.compute_axis_mapping):
        model_config = converter.config_from_hf_config(converter.default_hf_config)
        model = converter.load_pretrained(
            model_config.model_type, ref=checkpoint, config=model_config, dtype=jnp.float32
        )
        server = InferenceServer.create(config, model, tokenizer)
    server.serve()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
