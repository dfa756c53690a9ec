"""The limits within which an encoder's products stay, as tensors beside their weights; no jax.

Source: transformers `models/gemma4/modeling_gemma4.py` (Gemma4ClippableLinear)
"""

# Of what a weight multiplies, and of the result: tensors of one number each, beside `linear.weight`.
LIMITS = ("input_min", "input_max", "output_min", "output_max")
LIMITED = "_limits"  # ends the name of the array that has those of each tensor of a weight
