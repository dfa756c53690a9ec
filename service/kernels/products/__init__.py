"""Products with weights: in the form that XLA computes fastest, with 8-bit weights, and in C++ on a CPU."""
