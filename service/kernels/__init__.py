"""Attention over pages: one signature, one file per platform."""
