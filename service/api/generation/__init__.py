"""From an admitted request to tokens, text and JSON."""
