"""The bounds of histograms, chosen for what each measures: a bound beyond every value says nothing about any."""

from itertools import product

# From a prefix in the cache to a long prompt in a long queue, in seconds.
FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
# From a small model on an accelerator to a large one on a CPU that shares its steps with long prompts, in seconds.
TOKEN_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
# From one vector to an answer as long as REQUEST_TIMEOUT allows by default and beyond, in seconds.
REQUEST_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
# Prompts and completions, in tokens: 1, 2, 5, 10, … 1,000,000.
TOKENS = (*(digit * 10**power for power, digit in product(range(6), (1, 2, 5))), 1_000_000)
# Tokens of one step: powers of two, as its shapes are.
STEP_TOKENS = tuple(2**power for power in range(15))
# Choices of one request.
CHOICES = (1, 2, 3, 4, 5, 8, 16, 32, 64)
