# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["aider-chat==0.86.2"]
# ///
