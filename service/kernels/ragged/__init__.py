"""The parts of attention on a TPU besides JAX's kernel: writes into pages, and the sizes of blocks."""
