"""The base class of all errors."""


class ServiceError(Exception):
    """An error that Levserve raises deliberately."""
