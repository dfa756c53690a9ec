"""Levanter's own inference server, over HTTP.

    python -m benchmarks.peers.levanter CHECKPOINT PORT [MAX_SEQUENCES]

It has room for 32 sequences of 1,024 tokens in float32, as Levserve has; everything else is its default. It pads each
step to its maximum number of sequences, by default 256; with a maximum of 32 it is faster on such a machine. By default
it waits 0.1 s for more requests before a batch starts, which is part of its latency.
"""

import sys

NUM_SEQUENCES, CONTEXT_TOKENS = 32, 1024  # of the KV cache


def serve(checkpoint: str, port: int, **limits: int) -> None:
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
        max_seq_len=CONTEXT_TOKENS,
        max_pages=NUM_SEQUENCES * CONTEXT_TOKENS // 128,
        compute_dtype=jnp.float32,
        **limits,
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
    serve(sys.argv[1], int(sys.argv[2]), **({"max_seqs": int(sys.argv[3])} if len(sys.argv) > 3 else {}))
