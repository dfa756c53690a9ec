"""The pool of loaded models: which are in memory, which requests use them, and which are evicted."""
