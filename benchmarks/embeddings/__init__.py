"""`make bench-embeddings`: texts per second of Levserve's encoders and of their peers."""
