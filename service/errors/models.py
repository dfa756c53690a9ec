"""Errors of requests that name a model: it is unknown, of another kind, or not loaded."""

from collections.abc import Sequence

from service.errors.request import RequestError

# The most models that the error of an unknown one names.
MAX_NAMED_MODELS = 10


class UnknownModel(RequestError):
    """The requested model is not served here."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str, served: Sequence[str]) -> None:
        names = ", ".join(f"'{name}'" for name in served[:MAX_NAMED_MODELS])
        more = len(served) - MAX_NAMED_MODELS
        rest = f" and {more} more, which GET /v1/models lists" if more > 0 else ""
        super().__init__(f"The model '{model}' does not exist here. Served: {names}{rest}.", param="model")
        self.model = model
        self.served = tuple(served)


class AmbiguousModel(RequestError):
    """The requested name stands for several models."""

    code = "ambiguous_model"

    def __init__(self, model: str, candidates: Sequence[str]) -> None:
        names = " or ".join(f"'{name}'" for name in candidates)
        super().__init__(f"The model '{model}' may be {names}. Send one of these names.", param="model")
        self.model = model
        self.candidates = tuple(candidates)


class WrongKindOfModel(RequestError):
    """The served model is of a kind that this route does not serve."""

    code = "unsupported_model"

    def __init__(self, model: str, ability: str, routes: str) -> None:
        super().__init__(f"The model '{model}' {ability}: it answers {routes}, and not this route.", param="model")
        self.model = model


class ModelNotLoaded(RequestError):
    """The requested model is being loaded, or waits for room, and has not come in time."""

    status = 503
    type = "server_error"
    code = "model_loading"

    def __init__(self, model: str, progress: str, *, retry_after_s: int) -> None:
        super().__init__(
            f"The model '{model}' is not loaded yet: {progress}. Try again in {retry_after_s} s.", param="model"
        )
        self.model = model
        self.retry_after_s = retry_after_s


class ModelLoadFailed(RequestError):
    """The requested model could not be loaded; the others are served.

    Clients do not see the reason, which names addresses and files of the operator's.
    """

    status = 503
    type = "server_error"
    code = "model_load_failed"
    retry_after_s = 10

    def __init__(self, model: str, reason: str) -> None:
        message = f"The model '{model}' cannot be loaded. The service's log and /admin/models have the reason."
        super().__init__(message, param="model")
        self.model = model
        self.reason = reason
