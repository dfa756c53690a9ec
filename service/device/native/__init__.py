"""Custom calls in C++ that XLA makes on a CPU: products and zeros; `scripts/build_native.py` compiles them."""
