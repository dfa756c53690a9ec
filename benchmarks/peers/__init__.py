"""Contenders, one per file, each in its own process and usually its own environment."""
