"""Model families as pure functions over Haliax axes, and what a model must offer."""
