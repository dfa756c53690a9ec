"""Strings to token ids and back. Knows no engine and no HTTP."""
