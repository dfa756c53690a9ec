"""Encoder families: texts in, one vector per text out; no cache and no next token."""
