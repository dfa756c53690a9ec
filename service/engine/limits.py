"""Bounds of what one request may ask for, each the width of an array that compiled steps take or return."""

MAX_LOGPROBS = 20  # alternatives reported for each token
MAX_BIASED_TOKENS = 1024  # entries of a logit bias
MAX_STOP_IDS = 64  # stop tokens of a request with min_tokens
MAX_DRAFTS = 7  # tokens that are drafted for a sequence in a step, which then computes eight of it
MAX_ATTENTION_HEADS = 8  # of each layer, whose scores a request may want
