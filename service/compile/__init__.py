"""Functions and shapes to executables, ahead of traffic; independent of the engine."""
