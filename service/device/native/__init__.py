"""Products in C++ for processors with AVX2 or AVX-512, which XLA calls; `scripts/build_native.py` compiles them."""
