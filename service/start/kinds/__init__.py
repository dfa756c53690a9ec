"""The kinds of models that a start can build: what each needs, and how it runs once its weights are there."""
