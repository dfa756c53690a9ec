"""Custom calls in C++ that XLA makes on a CPU; `scripts/build_native.py` compiles them."""
