"""Pulled checkpoints on this machine's disk."""
