"""Attention kernels behind a single interface, one per platform, and products with weights."""
