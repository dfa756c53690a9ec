"""Training data of the demo model, by subject."""
