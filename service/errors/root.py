"""The root of every error."""


class ServiceError(Exception):
    """Any error that Levserve raises on purpose."""
