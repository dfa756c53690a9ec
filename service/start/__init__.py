"""A start as a graph of parts, from settings to a model that answers."""
