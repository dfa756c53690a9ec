"""Families of decoders: readers that make a description of a configuration, and the names of their tensors."""
