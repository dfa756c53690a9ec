# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["vllm-router==0.1.17"]
# ///
"""The environment of a router, which is run as a program of its own."""
