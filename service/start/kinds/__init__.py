"""The kinds of models that a start can build: their specs, and their running engines or encoders."""
