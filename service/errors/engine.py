"""Engine failures, with the HTTP status, type and code of their JSON."""

from service.errors.root import ServiceError


class EngineError(ServiceError):
    """The engine failed; the request is not at fault."""

    status: int = 500
    type = "server_error"
    code = "engine_error"


class NonFiniteLogits(EngineError):
    """The logits of one sequence are NaN or infinite; the rest of its batch is not affected."""

    code = "broken_scores"


class NonFiniteVector(EngineError):
    """The vector of one text is NaN or infinite; other requests are not affected."""

    code = "broken_scores"

    def __init__(self, index: int) -> None:
        super().__init__(
            f"The model's vector for the text at index {index} is NaN or infinite. Only this request is affected. "
            "The checkpoint's weights or the DTYPE may be at fault; another text may work."
        )
        self.index = index


class EngineStopped(EngineError):
    """The device thread has ended; the cause is chained."""

    status = 503
    code = "engine_stopped"
