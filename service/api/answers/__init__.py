"""What the service answers with, as types: handlers return these, and the OpenAPI document describes them."""
