"""Tool calls in a model's text: the formats of the families, their grammars, and text to calls as it arrives."""
