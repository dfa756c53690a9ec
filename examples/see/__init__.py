"""A model that sees, through OpenAI's client."""
