"""Executables stored for the next start: their key, their files, and the places that hold them."""
