"""What the demo model is taught, by subject."""
