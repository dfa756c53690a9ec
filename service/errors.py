"""Every error that a client or an operator can meet.

    ServiceError
    ├── RequestError                   400 invalid_request_error; answers one request
    │   ├── InvalidParameter               (param)
    │   ├── UnsupportedParameter           (param) in OpenAI's interface, not in ours yet
    │   ├── UnknownParameter               (param) in nobody's interface
    │   ├── MissingParameter               (param)
    │   ├── ContextLengthExceeded          (prompt_tokens, max_tokens, limit_tokens)
    │   ├── InvalidApiKey              401
    │   ├── UnknownRoute               404
    │   ├── UnknownModel               404 (model, served)
    │   ├── MethodNotAllowed           405
    │   ├── BodyTooSlow                408 (limit_s)
    │   ├── BodyTooLarge               413 (limit_bytes)
    │   ├── UnsupportedMediaType       415
    │   ├── ClientGone                 499 nobody reads the answer
    │   ├── Overloaded                 429 (running, limit, retry_after_s)
    │   ├── NotReady                   503 (phase, retry_after_s)
    │   ├── Draining                   503
    │   └── DeadlineExceeded           504 (limit_s)
    ├── EngineError                    500 server_error
    │   ├── BrokenScores                   one sequence's scores are no numbers
    │   └── EngineStopped              503 the device thread is gone
    └── StartError                     stops the start: one line, exit code 1
        ├── SettingsError                  (variable)
        ├── PortInUse                      (host, port)
        ├── DoesNotFit                     (needed_bytes, available_bytes)
        └── CheckpointError                (uri)
            ├── CheckpointNotFound, AccessDenied, MissingFile, AmbiguousCheckpoint
            ├── UnsupportedModel           (model_type or feature)
            ├── PickledWeights             (files)
            ├── MalformedCheckpoint        (file): lying headers, wrong shapes, bad JSON
            ├── HostileName                (name)
            ├── CorruptObject              (name, expected, actual)
            ├── ObjectChanged              (name, generation)
            ├── TransferFailed             (name)
            └── StorageFull                (needed_bytes, free_bytes)

Facts are fields, so that no caller has to read them out of a message; the message says cause and remedy.
A request error's class carries its wire form.
Source: https://platform.openai.com/docs/guides/error-codes
"""

from collections.abc import Sequence


class ServiceError(Exception):
    """Any error that Levserve raises on purpose."""


class RequestError(ServiceError):
    """One request cannot be served; everything else goes on."""

    status: int = 400
    type: str = "invalid_request_error"
    code: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidParameter(RequestError):
    """A field has a value that it cannot have."""

    code = "invalid_value"


class UnsupportedParameter(RequestError):
    """A field of OpenAI's interface that is not served, so it is refused rather than ignored."""

    code = "unsupported_parameter"

    def __init__(self, param: str, detail: str = "") -> None:
        super().__init__(f"'{param}' is not supported by this server{': ' + detail if detail else '.'}", param=param)


class UnknownParameter(RequestError):
    """A field that no interface has."""

    code = "unknown_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Unknown parameter: '{param}'.", param=param)


class MissingParameter(RequestError):
    """A field that must be there is not."""

    code = "missing_required_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Missing required parameter: '{param}'.", param=param)


class ContextLengthExceeded(RequestError):
    """The prompt and what it asks for do not fit into the model's context."""

    code = "context_length_exceeded"

    def __init__(
        self, *, prompt_tokens: int, max_tokens: int, limit_tokens: int, param: str, is_estimate: bool = False
    ) -> None:
        super().__init__(
            f"This model's maximum context length is {limit_tokens} tokens. However, you requested "
            f"{'at least ' if is_estimate else ''}{prompt_tokens + max_tokens} tokens "
            f"({prompt_tokens} in the prompt, {max_tokens} in the completion). "
            "Shorten the prompt or ask for fewer tokens.",
            param=param,
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.limit_tokens = limit_tokens


class InvalidApiKey(RequestError):
    """No key, or a wrong one."""

    status = 401
    code = "invalid_api_key"

    def __init__(self, *, is_missing: bool) -> None:
        cause = "You didn't provide an API key" if is_missing else "Incorrect API key provided"
        super().__init__(f"{cause}. Send it as 'Authorization: Bearer YOUR_KEY'.")


class UnknownRoute(RequestError):
    """No route has this path."""

    status = 404
    code = "unknown_url"


class UnknownModel(RequestError):
    """The request names a model that is not served here."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str, served: Sequence[str]) -> None:
        names = ", ".join(f"'{name}'" for name in served)
        super().__init__(f"The model '{model}' does not exist here. Served: {names}.", param="model")
        self.model = model
        self.served = tuple(served)


class MethodNotAllowed(RequestError):
    """The route exists, but not for this method."""

    status = 405
    code = "method_not_allowed"


class BodyTooSlow(RequestError):
    """The request's body did not arrive in time."""

    status = 408
    code = "request_timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"The request's body did not arrive within {limit_s:g} s.")
        self.limit_s = limit_s


class BodyTooLarge(RequestError):
    """The request's body is over the limit."""

    status = 413
    code = "request_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request's body is larger than the limit of {limit_bytes} bytes.")
        self.limit_bytes = limit_bytes


class UnsupportedMediaType(RequestError):
    """The body is not JSON."""

    status = 415
    code = "unsupported_media_type"


class ClientGone(RequestError):
    """The client closed the connection, so the work for it stops; the status is for the log."""

    status = 499
    code = "client_closed_request"

    def __init__(self) -> None:
        super().__init__("The client closed the connection.")


class Overloaded(RequestError):
    """The server holds as many requests as it may."""

    status = 429
    type = "rate_limit_error"
    code = "server_overloaded"

    def __init__(self, *, running: int, limit: int, retry_after_s: int = 1) -> None:
        super().__init__(f"The server is at its limit of {limit} concurrent requests. Try again in {retry_after_s} s.")
        self.running = running
        self.limit = limit
        self.retry_after_s = retry_after_s


class NotReady(RequestError):
    """The model is still on its way to the device."""

    status = 503
    type = "server_error"
    code = "not_ready"

    def __init__(self, progress: str, *, retry_after_s: int = 2) -> None:
        super().__init__(f"The model is not ready yet: {progress}. Try again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class Draining(RequestError):
    """The server was told to stop and takes no new request."""

    status = 503
    type = "server_error"
    code = "shutting_down"
    retry_after_s = 1

    def __init__(self) -> None:
        super().__init__("The server is shutting down and takes no new requests. Try again: another instance answers.")


class DeadlineExceeded(RequestError):
    """The request ran longer than REQUEST_TIMEOUT."""

    status = 504
    type = "server_error"
    code = "timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"The request took longer than REQUEST_TIMEOUT = {limit_s:g} s. Ask for fewer tokens.")
        self.limit_s = limit_s


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


class StartError(ServiceError):
    """The service cannot start; the message is one line with cause and remedy."""


class SettingsError(StartError):
    """A setting is unknown, malformed or contradicts another."""

    def __init__(self, variable: str, reason: str) -> None:
        super().__init__(f"{variable}: {reason}")
        self.variable = variable


class PortInUse(StartError):
    """We may not listen where we should; as a rule because another process does."""

    def __init__(self, host: str, port: int, cause: str) -> None:
        super().__init__(
            f"cannot listen on {host} port {port}: {cause}. Stop what uses it, or set PORT (or HOST) to a free one."
        )
        self.host = host
        self.port = port


class DoesNotFit(StartError):
    """The weights and the smallest useful KV cache need more memory than each device has."""

    def __init__(self, *, needed_bytes: int, available_bytes: int, remedy: str) -> None:
        super().__init__(
            f"the model needs {needed_bytes:,} bytes on each device and {available_bytes:,} are there. {remedy}"
        )
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class CheckpointError(StartError):
    """The checkpoint cannot be served."""

    def __init__(self, uri: str, message: str) -> None:
        super().__init__(f"{uri}: {message}")
        self.uri = uri


class CheckpointNotFound(CheckpointError):
    """There is nothing at this place."""


class AccessDenied(CheckpointError):
    """The place exists, or may, but we are not allowed to read it."""


class MissingFile(CheckpointError):
    """The checkpoint lacks a file that it needs; the message names the setting that supplies it."""


class AmbiguousCheckpoint(CheckpointError):
    """The place holds more than one thing that could be meant."""


class UnsupportedModel(CheckpointError):
    """The model's family, or a feature that its configuration asks for, is not served."""


class PickledWeights(CheckpointError):
    """The weights are pickles, which can run code and are never opened."""

    def __init__(self, uri: str, files: Sequence[str]) -> None:
        super().__init__(
            uri,
            f"the weights are pickled ({', '.join(files[:3])}{', …' if len(files) > 3 else ''}), and reading a pickle "
            "can run any code, so they are refused. Convert them once with transformers: "
            "AutoModelForCausalLM.from_pretrained(PATH).save_pretrained(NEW_PATH, safe_serialization=True).",
        )
        self.files = tuple(files)


class MalformedCheckpoint(CheckpointError):
    """A file does not hold what its header, its index or the model's configuration says."""

    def __init__(self, uri: str, file: str, reason: str) -> None:
        super().__init__(uri, f"{file}: {reason}")
        self.file = file


class HostileName(CheckpointError):
    """An object's name would lead outside the cache."""

    def __init__(self, uri: str, name: str, reason: str) -> None:
        super().__init__(
            uri, f"the object name {name!r} {reason}; nothing was downloaded. Rename or delete the object."
        )
        self.name = name


class CorruptObject(CheckpointError):
    """The bytes that came are not the bytes that were stored."""

    def __init__(self, uri: str, name: str, *, expected: str, actual: str) -> None:
        cause = f"{name}: crc32c is {actual}, the bucket says {expected}, twice in a row."
        super().__init__(uri, f"{cause} Nothing was kept. Try again; if it stays, upload the object anew.")
        self.name = name
        self.expected = expected
        self.actual = actual


class ObjectChanged(CheckpointError):
    """An object was overwritten or deleted while the checkpoint was being pulled."""

    def __init__(self, uri: str, name: str, generation: int) -> None:
        cause = f"{name} was overwritten or deleted while it was being pulled (generation {generation} is gone)."
        super().__init__(uri, f"{cause} Nothing was kept. Start again when the upload is complete.")
        self.name = name
        self.generation = generation


class TransferFailed(CheckpointError):
    """A transfer did not finish within its retries or its deadline."""

    def __init__(self, uri: str, name: str, reason: str) -> None:
        super().__init__(uri, f"{name}: {reason}")
        self.name = name


class StorageFull(CheckpointError):
    """The cache's file system has not enough room."""

    def __init__(self, uri: str, *, needed_bytes: int, free_bytes: int, path: str) -> None:
        super().__init__(
            uri,
            f"{needed_bytes:,} bytes are needed under {path} and {free_bytes:,} are free. "
            "Free some room or set LOCAL_MODEL_CACHE to a larger disk.",
        )
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
