"""Types of answers: handlers return them, and the OpenAPI document describes them."""
