"""Errors that answer one request, with the HTTP status, type and code of their JSON.

Source: https://platform.openai.com/docs/guides/error-codes
"""

from collections.abc import Sequence

from service.errors.root import ServiceError

# Limits the length of the error for an unknown model.
MAX_NAMED_MODELS = 10


class RequestError(ServiceError):
    """One request cannot be served; others are not affected."""

    status: int = 400
    type: str = "invalid_request_error"
    code: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidParameter(RequestError):
    """A field has an invalid value."""

    code = "invalid_value"


class UnsupportedParameter(RequestError):
    """A known field is not supported, and is refused rather than ignored."""

    code = "unsupported_parameter"

    def __init__(self, param: str, detail: str = "") -> None:
        super().__init__(
            f"'{param}' is not supported by this server{': ' + detail if detail else '. Leave it out.'}", param=param
        )


class UnknownParameter(RequestError):
    """A field is not part of any known interface."""

    code = "unknown_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Unknown parameter: '{param}'. Leave it out, or correct its name.", param=param)


class MissingParameter(RequestError):
    """A required field is missing."""

    code = "missing_required_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Missing required parameter: '{param}'.", param=param)


class ConstraintError(RequestError):
    """The request's grammar rejects every continuation; the rest of its batch is not affected."""

    code = "constraint_failed"


class ContextLengthExceeded(RequestError):
    """The prompt and the requested completion do not fit into the model's context."""

    code = "context_length_exceeded"

    def __init__(
        self, *, prompt_tokens: int, max_tokens: int, max_model_len: int, param: str, is_estimate: bool = False
    ) -> None:
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{'at least ' if is_estimate else ''}{prompt_tokens + max_tokens} tokens "
            f"({prompt_tokens} in the prompt, {max_tokens} in the completion). "
            "Shorten the prompt or ask for fewer tokens.",
            param=param,
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.max_model_len = max_model_len


class TextTooLong(RequestError):
    """A text has more tokens than the model accepts."""

    code = "context_length_exceeded"

    def __init__(self, *, num_tokens: int, max_model_len: int, param: str) -> None:
        super().__init__(
            f"This model accepts texts of at most {max_model_len} tokens, but '{param}' has {num_tokens}. "
            "Shorten it, or send 'truncate_prompt_tokens': -1 to truncate it.",
            param=param,
        )
        self.num_tokens = num_tokens
        self.max_model_len = max_model_len


class InvalidApiKey(RequestError):
    """The request has no API key, or a wrong one."""

    status = 401
    code = "invalid_api_key"

    def __init__(self, *, is_missing: bool) -> None:
        cause = "You didn't provide an API key" if is_missing else "Incorrect API key provided"
        super().__init__(f"{cause}. Send it as 'Authorization: Bearer YOUR_KEY'.")


class PriorityNotAllowed(RequestError):
    """The request's API key may not raise its priority above others'."""

    status = 403
    code = "priority_not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "This API key may not send a negative 'priority'. Send 0 or more, or ask the operator to set "
            "can_prioritize for the key in API_KEY_FILE.",
            param="priority",
        )


class UnknownRoute(RequestError):
    """No route has this path."""

    status = 404
    code = "unknown_url"


class UnknownObject(RequestError):
    """No file, batch or response of this API key has this id."""

    status = 404
    code = "not_found"

    def __init__(self, kind: str, object_id: str) -> None:
        super().__init__(f"No {kind} found with id '{object_id[:64]}'.", param=f"{kind}_id")
        self.kind = kind
        self.object_id = object_id


class PreviousResponseNotFound(RequestError):
    """No response of this API key has the given `previous_response_id`."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id[:64]}' not found.", param="previous_response_id")
        self.response_id = response_id


class FilesFull(RequestError):
    """The storage for files is full."""

    status = 413
    code = "storage_limit_exceeded"

    def __init__(self, *, taken_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"Files and batches take {taken_bytes} of at most {limit_bytes} bytes. Delete files.", param="file"
        )
        self.taken_bytes = taken_bytes
        self.limit_bytes = limit_bytes


class FilesUnavailable(RequestError):
    """The storage for files and batches is unavailable."""

    status = 503
    type = "server_error"
    code = "files_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "Files and batches are temporarily unavailable; see the server's log for the cause. Try again."
        )


class ResponsesUnavailable(RequestError):
    """The storage for responses is unavailable."""

    status = 503
    type = "server_error"
    code = "responses_unavailable"

    def __init__(self) -> None:
        super().__init__("Responses are temporarily unavailable; see the server's log for the cause. Try again.")


class NotReady(RequestError):
    """The model is still loading."""

    status = 503
    type = "server_error"
    code = "not_ready"

    def __init__(self, progress: str, *, retry_after_s: int = 2) -> None:
        super().__init__(f"The model is not ready yet: {progress}. Try again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class Draining(RequestError):
    """The server is shutting down and accepts no new requests."""

    status = 503
    type = "server_error"
    code = "shutting_down"
    retry_after_s = 1

    def __init__(self) -> None:
        super().__init__(
            "The server is shutting down and accepts no new requests. Try again: another instance will respond."
        )


class DeadlineExceeded(RequestError):
    """The request ran longer than REQUEST_TIMEOUT."""

    status = 504
    type = "server_error"
    code = "timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"The request took longer than REQUEST_TIMEOUT = {limit_s:g} s. Ask for fewer tokens.")
        self.limit_s = limit_s


class BodyTooLaborious(RequestError):
    """Parsing, rendering or tokenizing one request took too much time or memory."""

    code = "request_too_laborious"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Processing this request body {reason}. Send a shorter request.")
        self.reason = reason


class TemplateFailed(RequestError):
    """The model's chat template took too much time or memory for these messages; a new process renders later ones."""

    code = "template_failed"

    def __init__(self, reason: str, model: str | None = None) -> None:
        of = "the model" if model is None else f"the model '{model}'"
        super().__init__(
            f"The chat template of {of} {reason}. The template is at fault, or the messages are too many. "
            "Send fewer, or serve the model with another CHAT_TEMPLATE.",
            param="messages",
        )
        self.reason = reason


class HostNotAllowed(RequestError):
    """The request names another host than this service has, as that of a page in a browser does."""

    status = 403
    code = "host_not_allowed"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"This service listens on its own machine and has no API_KEY, so it does not answer to '{name[:100]}'. Set "
            "API_KEY, or name the host in ALLOWED_HOSTS, or the origin in CORS_ORIGINS."
        )
        self.name = name


class WorkerKilled(RequestError):
    """Something outside of this service has ended the process that worked on the request, such as a lack of memory."""

    status = 503
    type = "server_error"
    code = "worker_killed"
    retry_after_s = 1

    def __init__(self) -> None:
        super().__init__("The process that worked on this request was ended from outside. Send the request again.")


class WorkerBusy(RequestError):
    """The process that works on such requests was busy with others for too long."""

    status = 503
    type = "server_error"
    code = "worker_busy"

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"The process that works on such requests was busy with others for {limit_s:g} s. Send the request again."
        )
        self.limit_s = limit_s


class UnreadableAudio(RequestError):
    """The file is no audio of a supported format, or has no sound that could be decoded."""

    code = "invalid_audio"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The audio in 'file' {reason}. Send sound as wav, flac, mp3, m4a, ogg, opus or webm, or a film.",
            param="file",
        )
        self.reason = reason


class AudioTooLong(RequestError):
    """The file plays for longer than the limit."""

    status = 413
    code = "audio_too_long"

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"The audio in 'file' is longer than the limit of {limit_s:g} seconds. Send it in parts.", param="file"
        )
        self.limit_s = limit_s


class AudioTooLaborious(RequestError):
    """Decoding the file exceeded a limit of its process."""

    code = "audio_too_laborious"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Decoding the audio in 'file' {reason}. Send a shorter or simpler file.", param="file")
        self.reason = reason


class UnreadablePdf(RequestError):
    """The file is no PDF, or has no text that can be read."""

    code = "invalid_pdf"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The PDF in 'file' {reason}. Send a PDF with text that asks for no password.", param="file")
        self.reason = reason


class PdfTooLaborious(RequestError):
    """Reading the PDF exceeded a limit of its process."""

    code = "pdf_too_laborious"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Reading the PDF in 'file' {reason}. Send a smaller or simpler one.", param="file")
        self.reason = reason


class UnreadableImage(RequestError):
    """The file is no image of a supported format, or cannot be decoded."""

    code = "invalid_image"

    def __init__(self, reason: str, *, param: str) -> None:
        super().__init__(f"The image in '{param}' {reason}. Send a PNG, JPEG, WebP or GIF.", param=param)
        self.reason = reason


class ImageTooLarge(RequestError):
    """The image has more pixels than the limit."""

    status = 413
    code = "image_too_large"

    def __init__(self, limit_pixels: int, *, param: str) -> None:
        message = f"The image in '{param}' has more than {limit_pixels:,} pixels. Send a smaller one."
        super().__init__(message, param=param)
        self.limit_pixels = limit_pixels


class ImageTooLaborious(RequestError):
    """Decoding the image exceeded a limit of its process."""

    code = "image_too_laborious"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Decoding an image of this request {reason}. Send a smaller or simpler one.")
        self.reason = reason


class MalformedRequest(RequestError):
    """The request violates HTTP, or its head exceeds a limit."""

    code = "malformed_request"

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class MethodNotAllowed(RequestError):
    """The route exists, but not for this method."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, allow: str | None = None) -> None:
        super().__init__("This route does not allow this method.")
        self.allow = allow  # the methods of the route, for the header


class BodyTooSlow(RequestError):
    """The request's body did not arrive in time."""

    status = 408
    code = "request_timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"The request's body did not arrive within {limit_s:g} s.")
        self.limit_s = limit_s


class BodyTooLarge(RequestError):
    """The request's body exceeds the limit."""

    status = 413
    code = "request_too_large"

    def __init__(self, limit_bytes: int, setting: str | None = None, *, param: str | None = None) -> None:
        """State the limit.

        Args:
            limit_bytes: of the body; with `param`, of the body without its images.
            setting: what the operator sets the limit by.
            param: the field that is too large.
        """
        what = "The request's body" if param is None else f"'{param}' without images"
        by = "" if setting is None else f" ({setting})"
        super().__init__(f"{what} is larger than the limit of {limit_bytes} bytes{by}.", param=param)
        self.limit_bytes, self.setting = limit_bytes, setting


class UnsupportedMediaType(RequestError):
    """The body is compressed, or its content type is not supported by the route."""

    status = 415
    code = "unsupported_media_type"


class ClientDisconnected(RequestError):
    """The client closed the connection, which cancels its request; the status is for the log."""

    status = 499
    code = "client_closed_request"

    def __init__(self) -> None:
        super().__init__("The client closed the connection.")


class TooManyConnections(RequestError):
    """The process has reached its limit of connections."""

    status = 503
    type = "server_error"
    code = "too_many_connections"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The server is at its limit of {limit} connections. Try again.")
        self.limit = limit


class UnknownModel(RequestError):
    """The requested model is not served here."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str, served: Sequence[str]) -> None:
        names = ", ".join(f"'{name}'" for name in served[:MAX_NAMED_MODELS])
        more = len(served) - MAX_NAMED_MODELS
        rest = f" and {more} more (see GET /v1/models)" if more > 0 else ""
        super().__init__(f"The model '{model}' does not exist. Available: {names}{rest}.", param="model")
        self.model = model
        self.served = tuple(served)


class AmbiguousModel(RequestError):
    """The requested name matches several models."""

    code = "ambiguous_model"

    def __init__(self, model: str, candidates: Sequence[str]) -> None:
        names = " or ".join(f"'{name}'" for name in candidates)
        super().__init__(f"The model '{model}' is ambiguous: {names}. Send one of these names.", param="model")
        self.model = model
        self.candidates = tuple(candidates)


class WrongKindOfModel(RequestError):
    """The model does not support this route."""

    code = "unsupported_model"

    def __init__(self, model: str, ability: str, routes: str) -> None:
        super().__init__(
            f"The model '{model}' {ability} and does not support this endpoint. Use {routes}.", param="model"
        )
        self.model = model


class ModelNotLoaded(RequestError):
    """The requested model did not load in time: it is still loading, or waits for memory."""

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
    """The requested model could not be loaded; other models are not affected.

    Clients see what is wrong with a checkpoint's own files. Another reason may contain the operator's addresses.
    """

    status = 503
    type = "server_error"
    code = "model_load_failed"
    retry_after_s = 10

    def __init__(self, model: str, reason: str, shown: str | None = None) -> None:
        """Describe a failed load.

        Args:
            model: its name.
            reason: why it failed, with paths, for the log.
            shown: for clients; None to refer them to the operator.
        """
        reason_shown = shown or "See the service's log or /admin/models for the reason."
        super().__init__(f"The model '{model}' cannot be loaded. {reason_shown}", param="model")
        self.shown = shown
        self.model = model
        self.reason = reason


class Overloaded(RequestError):
    """The server is at its limit of concurrent requests."""

    status = 429
    type = "rate_limit_error"
    code = "server_overloaded"
    counted = "concurrent requests"  # the limited quantity, in words

    def __init__(self, *, running: int, limit: int, retry_after_s: int = 1) -> None:
        super().__init__(f"The server is at its limit of {limit} {self.counted}. Try again in {retry_after_s} s.")
        self.running = running
        self.limit = limit
        self.retry_after_s = retry_after_s


class QueueFull(Overloaded):
    """As many requests wait as MAX_QUEUE_SIZE allows."""

    code = "queue_full"
    counted = "waiting requests"


class QueuedTokensFull(Overloaded):
    """The waiting requests have as many prompt tokens as MAX_QUEUED_TOKENS allows."""

    code = "queued_tokens_full"
    counted = "waiting prompt tokens"


class BodyBytesFull(Overloaded):
    """The bodies of open requests have as many bytes as MAX_OPEN_BODY_BYTES allows."""

    code = "body_bytes_full"
    counted = "bytes of open request bodies"


class LongBodiesFull(Overloaded):
    """The long bodies of waiting requests use up the time reserved for them."""

    code = "long_bodies_full"
    counted = "long request bodies"


class QueueTimeout(RequestError):
    """The request waited longer than QUEUE_TIMEOUT for its first step."""

    status = 503
    type = "server_error"
    code = "queue_timeout"

    def __init__(self, limit_s: float, *, retry_after_s: int | None = None) -> None:
        super().__init__(
            f"The request waited longer than QUEUE_TIMEOUT = {limit_s:g} s and was not started. Try again later."
        )
        self.limit_s = limit_s
        self.retry_after_s = retry_after_s
