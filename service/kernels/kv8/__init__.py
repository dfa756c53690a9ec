"""The parts of TPU attention over an 8-bit KV cache."""
