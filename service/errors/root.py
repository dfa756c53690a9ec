"""The base class of all errors."""


class ServiceError(Exception):
    """An error that Levserve raises deliberately; its arguments and fields can be written as JSON."""
