"""Reads and writes of GCS buckets, the Hugging Face Hub and local folders, with checksums and resumable transfers."""
