"""From an admitted recording to its transcript, and to the JSON and texts of answers."""
