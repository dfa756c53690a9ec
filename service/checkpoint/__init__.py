"""Checkpoints: their layouts, their configurations, and the loading of their weights."""
