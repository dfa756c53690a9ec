"""Checks of a device before it serves, in parts that resume: `make device-check`."""
