"""`levserve batch`: the same engine without a port; OpenAI batch files in, result files out."""
