"""From the texts of a request to their vectors."""
