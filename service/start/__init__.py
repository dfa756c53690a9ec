"""The start of a model, from settings to answered requests, as a graph of tasks."""
