# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["sglang-router==0.3.2"]
# ///
"""The environment of a router, which is run as a program of its own."""
