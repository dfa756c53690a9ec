"""The short form of `make soak`."""
