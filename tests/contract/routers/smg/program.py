# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["smg==1.13.0"]
# ///
"""The environment of a router, which is run as a program of its own."""
