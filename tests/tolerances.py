"""Tolerances of comparisons, with a reason each. Never widened to make a test pass."""

# Two float32 implementations of one model, logits of standard deviation about 2: sums in another order.
SAME_MODEL_ATOL = 1e-4

# One implementation fed in other chunks: the same sums, tiled otherwise.
SAME_TOKENS_OTHER_STEPS_ATOL = 1e-5

# One recurrence in rows and token by token: a state that is summed otherwise, and layers after it that inherit it.
SAME_RECURRENCE_OTHER_STEPS_ATOL = 5e-5

# One attention in two layouts: the same float32 products in another order, values of standard deviation 1.
SAME_ATTENTION_ATOL = 2e-6

# A log-probability in float32 against float64: scores up to 20, sums of 50 terms.
SAME_LOGPROB_ATOL = 5e-6

# Attention in a narrow type against float32: a weight and the result are each rounded to 8 (11) bits, values up to 4.
SAME_ATTENTION_BFLOAT16_ATOL = 2 * 4 * 2**-9
SAME_ATTENTION_FLOAT16_ATOL = 2 * 4 * 2**-12

# An int8 step against float32 sums of the same integers: the norms and attention between them, fused otherwise.
SAME_QUANTIZED_MODEL_ATOL = 1e-3
