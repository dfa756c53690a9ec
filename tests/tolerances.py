"""How far numbers may differ, with a reason each. Never widened to make a test pass."""

# Two float32 implementations of one model, logits of standard deviation about 2: sums in another order.
SAME_MODEL_ATOL = 1e-4

# One implementation fed in other chunks: the same sums, tiled otherwise.
SAME_TOKENS_OTHER_STEPS_ATOL = 1e-5
