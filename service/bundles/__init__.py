"""Bundles of serialized executables for the next start: their key, their files, and where they are stored."""
