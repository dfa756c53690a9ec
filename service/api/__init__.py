"""OpenAI's API over HTTP: JSON in, JSON and server-sent events out."""
