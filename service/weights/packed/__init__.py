"""Quantized weights that a checkpoint stores as several packed tensors."""
