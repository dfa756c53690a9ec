"""Schemas, patterns and grammars of requests to masks over the tokens that may be sampled next."""
