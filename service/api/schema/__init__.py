"""What a request may say, and which fields are refused."""
