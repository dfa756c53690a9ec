"""Levserve: an OpenAI-compatible inference service for fine-tuned models, on JAX."""
