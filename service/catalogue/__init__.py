"""The models that a process can serve: names, addresses and options, from a listing or a file. Imports no jax."""
