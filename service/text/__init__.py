"""Strings to token ids and back; independent of the engine and of HTTP."""
