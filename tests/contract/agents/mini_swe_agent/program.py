# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["mini-swe-agent==2.4.6"]
# ///
"""The environment of an agent, which is run as a program of its own."""
