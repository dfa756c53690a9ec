"""Uploaded files and batches of requests, which outlive the process; also what `levserve batch` shares with them."""
