"""Errors that answer one request; each class has the status, type and code of its JSON.

Source: https://platform.openai.com/docs/guides/error-codes
"""

from service.errors.root import ServiceError


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
    """A known field is not supported, so it is refused rather than ignored."""

    code = "unsupported_parameter"

    def __init__(self, param: str, detail: str = "") -> None:
        super().__init__(
            f"'{param}' is not supported by this server{': ' + detail if detail else '. Leave it out.'}", param=param
        )


class UnknownParameter(RequestError):
    """A field belongs to no known interface."""

    code = "unknown_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Unknown parameter: '{param}'. Leave it out, or correct its name.", param=param)


class MissingParameter(RequestError):
    """A required field is missing."""

    code = "missing_required_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Missing required parameter: '{param}'.", param=param)


class ConstraintError(RequestError):
    """The rule that a request holds its answer to cannot be followed further; the others of its batch go on."""

    code = "constraint_failed"


class ContextLengthExceeded(RequestError):
    """The prompt and the requested completion do not fit into the model's context."""

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


class TextTooLong(RequestError):
    """A text has more tokens than the model takes."""

    code = "context_length_exceeded"

    def __init__(self, *, num_tokens: int, limit_tokens: int, param: str) -> None:
        super().__init__(
            f"This model takes texts of at most {limit_tokens} tokens, and '{param}' has {num_tokens}. "
            "Shorten it, or send 'truncate_prompt_tokens': -1 to have the rest cut off.",
            param=param,
        )
        self.num_tokens = num_tokens
        self.limit_tokens = limit_tokens


class InvalidApiKey(RequestError):
    """The request has no API key, or a wrong one."""

    status = 401
    code = "invalid_api_key"

    def __init__(self, *, is_missing: bool) -> None:
        cause = "You didn't provide an API key" if is_missing else "Incorrect API key provided"
        super().__init__(f"{cause}. Send it as 'Authorization: Bearer YOUR_KEY'.")


class PriorityNotAllowed(RequestError):
    """The request's key may not overtake the requests of others."""

    status = 403
    code = "priority_not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "This API key may not send a negative 'priority'. Send 0 or more, or have the operator set "
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
    """No response of this API key has the id of the one to continue."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id[:64]}' not found.", param="previous_response_id")
        self.response_id = response_id


class FilesFull(RequestError):
    """There is no room for another file."""

    status = 413
    code = "storage_limit_exceeded"

    def __init__(self, *, taken_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"Files and batches take {taken_bytes} bytes, and may take {limit_bytes}. Delete files.", param="file"
        )
        self.taken_bytes = taken_bytes
        self.limit_bytes = limit_bytes


class FilesUnavailable(RequestError):
    """The place of files and batches cannot be read or written now."""

    status = 503
    code = "files_unavailable"

    def __init__(self) -> None:
        super().__init__("Files and batches cannot be read or written now; the server's log has the cause. Try again.")


class ResponsesUnavailable(RequestError):
    """The place of responses cannot be read or written now."""

    status = 503
    code = "responses_unavailable"

    def __init__(self) -> None:
        super().__init__("Responses cannot be read or written now; the server's log has the cause. Try again.")


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
            "The server is shutting down and accepts no new requests. Try again: another instance will answer."
        )


class DeadlineExceeded(RequestError):
    """The request ran longer than REQUEST_TIMEOUT."""

    status = 504
    type = "server_error"
    code = "timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"The request took longer than REQUEST_TIMEOUT = {limit_s:g} s. Ask for fewer tokens.")
        self.limit_s = limit_s
