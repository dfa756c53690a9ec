"""The cache on a CPU: a row of positions per slot, and the copies within it."""
