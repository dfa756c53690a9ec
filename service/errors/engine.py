"""Failures of the engine; each class has the status, type and code of its JSON."""

from service.errors.root import ServiceError


class EngineError(ServiceError):
    """The engine failed; the request is not at fault."""

    status: int = 500
    type = "server_error"
    code = "engine_error"


class NonFiniteLogits(EngineError):
    """One sequence's logits are NaN or infinite; the others of its batch go on."""

    code = "broken_scores"


class NonFiniteVector(EngineError):
    """The vector of one text is NaN or infinite; other requests go on."""

    code = "broken_scores"

    def __init__(self, index: int) -> None:
        super().__init__(
            f"The model's vector of the text at index {index} is NaN or infinite. This ends this request only. "
            "The checkpoint's weights or the DTYPE may be at fault; another text may work."
        )
        self.index = index


class TemplateFailed(EngineError):
    """The model's chat template has exceeded what it may take; later requests are rendered by a new process."""

    code = "template_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The model's chat template {reason}. The template of the checkpoint is at fault.")
        self.reason = reason


class EngineStopped(EngineError):
    """The device thread has ended; the cause is chained."""

    status = 503
    code = "engine_stopped"
