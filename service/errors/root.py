"""The base class of all errors."""

from typing import Any, override


class ServiceError(Exception):
    """An error that Levserve raises deliberately. It can be pickled, without the errors that it is chained to."""

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, vars(self))


def _restored(kind: type[ServiceError], arguments: tuple[Any, ...], fields: dict[str, Any]) -> ServiceError:
    error = kind.__new__(kind, *arguments)  # not `__init__`, which would build the message again
    vars(error).update(fields)
    return error
