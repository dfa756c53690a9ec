"""A safe reader of PyTorch's pickled weights: pickles are interpreted as descriptions, never executed."""
