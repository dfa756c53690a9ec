"""Token ids in, token ids out. Knows no strings, no HTTP, and no model by name."""
