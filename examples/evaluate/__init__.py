"""Evaluate a model with lm-eval through its API."""
