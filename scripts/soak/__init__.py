"""Loads and attacks against a real process over loopback, each with its bound: `make soak`."""
