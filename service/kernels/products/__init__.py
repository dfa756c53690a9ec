"""Products with weights: as XLA computes them best on a device, with weights in 8 bits, and on a CPU in C++."""
