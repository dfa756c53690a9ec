"""Tool calls and JSON answers through OpenAI's client."""
