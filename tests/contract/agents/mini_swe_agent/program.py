# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["mini-swe-agent==2.4.6"]
# ///
