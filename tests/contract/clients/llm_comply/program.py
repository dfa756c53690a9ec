# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["llm-comply==0.5.0"]
# ///
"""The environment of llm-comply, which is run as a program of its own."""
