"""What fails in the engine by no fault of the request; a class carries its wire form."""

from service.errors.root import ServiceError


class EngineError(ServiceError):
    """The engine failed; the fault is ours, not the request's."""

    status: int = 500
    type = "server_error"
    code = "engine_error"


class BrokenScores(EngineError):
    """The model's scores for one sequence are no numbers; its neighbours go on."""

    code = "broken_scores"


class EngineStopped(EngineError):
    """The device thread has ended; its cause is chained."""

    status = 503
    code = "engine_stopped"
