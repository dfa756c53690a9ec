# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["aider-chat==0.86.2"]
# ///
"""The environment of an agent, which is run as a program of its own."""
