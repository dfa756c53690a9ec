"""Token ids in, token ids out: the engine. Independent of strings, HTTP and model families."""
