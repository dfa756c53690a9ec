"""The KV cache on a CPU: a row of positions per slot, and copies within it."""
