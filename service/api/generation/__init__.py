"""Checked requests to running sequences, and their tokens to text and log-probabilities."""
