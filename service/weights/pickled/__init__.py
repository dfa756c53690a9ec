"""PyTorch's pickled weights, read as descriptions of tensors: nothing that a file names is imported or called."""
