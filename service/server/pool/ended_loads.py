"""Ends of a load that are no failure of the model."""

from service.errors import ServiceError


class NobodyWaits(ServiceError):
    """Every request for a model has ended before there was room for it."""


class LoadCancelled(ServiceError):
    """An operator has ended a load."""

    def __init__(self, model: str) -> None:
        super().__init__(f"the load of {model!r} was ended by an operator")
        self.model = model
