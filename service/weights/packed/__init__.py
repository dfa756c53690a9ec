"""Weights that a checkpoint holds in several tensors: collected, and unpacked when all of them have arrived."""
