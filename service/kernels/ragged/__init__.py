"""The parts of TPU attention around JAX's kernel: writes into pages, and block sizes."""
