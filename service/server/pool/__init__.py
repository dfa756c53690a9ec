"""Loaded models by name: which of the catalogue's are in memory, which requests hold them, what goes to make room."""
