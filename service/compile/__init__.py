"""Ahead-of-time compilation of functions at given shapes; independent of the engine."""
