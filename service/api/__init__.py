"""OpenAI over HTTP: JSON in, JSON and server-sent events out. Knows no arrays and no token arithmetic."""
