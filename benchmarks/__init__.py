"""Measurements: each prints what it found and how to find it again."""
