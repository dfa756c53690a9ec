"""Formats in which a checkpoint stores quantized layers, as its `quantization_config` describes them; no jax."""
