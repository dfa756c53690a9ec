"""The models that a process may serve: names, addresses and options, from a listing or a file. Knows no jax."""
