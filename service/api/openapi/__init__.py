"""The service's own description, OpenAPI 3.1; only `route` is imported before it is asked for."""
