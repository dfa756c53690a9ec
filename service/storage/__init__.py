"""Bytes from a bucket, the Hub or a folder to this machine, checked and resumable."""
