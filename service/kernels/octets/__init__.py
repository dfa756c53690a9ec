"""The parts of attention on a TPU over keys and values in 8 bits."""
