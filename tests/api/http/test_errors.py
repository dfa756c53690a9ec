"""Every error has OpenAI's four keys; details of internal errors go to the log alone."""

import json

import pytest

from service import errors
from service.api.http.call import CALL, Call
from service.api.http.errors import error_answer, logged_error_answer
from service.worker.process import error_json, error_of
from tests.api.scripted_engine import TOKENIZER, Service

pytestmark = pytest.mark.anyio

REFUSALS = [
    errors.AmbiguousModel("a-b-c", ["a/b-c", "a-b/c"]),
    errors.InvalidParameter("no", param="seed"),
    errors.UnsupportedParameter("n"),
    errors.UnknownParameter("foo"),
    errors.MissingParameter("model"),
    errors.ConstraintError("no", param="structured_outputs.regex"),
    errors.ContextLengthExceeded(prompt_tokens=9, max_tokens=1, max_model_len=5, param="prompt"),
    errors.AudioTooLaborious("took too long"),
    errors.AudioTooLong(60.0),
    errors.UnreadableAudio("is empty"),
    errors.ImageTooLaborious("took too long"),
    errors.ImageTooLarge(9, param="messages"),
    errors.UnreadableImage("is empty", param="messages"),
    errors.PdfTooLaborious("took too long"),
    errors.UnreadablePdf("is no PDF"),
    errors.BodyTooLaborious("took too long"),
    errors.TemplateFailed("took too long", "a"),
    errors.TextTooLong(num_tokens=9, max_model_len=5, param="input"),
    errors.WrongKindOfModel("a", "generates text", "/v1/completions"),
    errors.AmbiguousModel("a", ["b", "c"]),
    errors.InvalidApiKey(is_missing=True),
    errors.MalformedRequest("no", status=431),
    errors.UnknownRoute("no"),
    errors.UnknownModel("a", ["b"]),
    errors.UnknownObject("file", "file-1"),
    errors.PreviousResponseNotFound("resp_1"),
    errors.ResponsesUnavailable(),
    errors.FilesFull(taken_bytes=1, limit_bytes=2),
    errors.FilesUnavailable(),
    errors.MethodNotAllowed("no"),
    errors.BodyTooSlow(1.0),
    errors.BodyTooLarge(5),
    errors.BodyTooLarge(5, "MAX_BODY_BYTES", param="messages"),
    errors.UnsupportedMediaType("no"),
    errors.ClientDisconnected(),
    errors.Overloaded(running=1, limit=1, retry_after_s=7),
    errors.QueueFull(running=1, limit=1),
    errors.QueuedTokensFull(running=1, limit=1),
    errors.BodyBytesFull(running=1, limit=1),
    errors.LongBodiesFull(running=1, limit=1),
    errors.QueueTimeout(5),
    errors.PriorityNotAllowed(),
    errors.TooManyConnections(5),
    errors.NotReady("weights"),
    errors.ModelNotLoaded("a", "weights", retry_after_s=5),
    errors.ModelLoadFailed("a", "it is too large"),
    errors.Draining(),
    errors.WorkerBusy(9.0),
    errors.WorkerKilled(),
    errors.HostNotAllowed("evil.example"),
    errors.DeadlineExceeded(1.0),
]
FAULTS = [errors.EngineError("/secret 0x7f"), errors.EngineStopped("/secret"), ValueError("/secret"), MemoryError()]


def scope():
    return {"path": "/v1/chat/completions", CALL: Call(id="req_1")}


def all_kinds(kind):
    return {kind}.union(*(all_kinds(sub) for sub in kind.__subclasses__()))


def test_no_refusal_is_forgotten_here():
    assert {type(error) for error in REFUSALS} == all_kinds(errors.RequestError) - {errors.RequestError}


def test_a_fault_of_ours_is_called_one():
    assert {error.type for error in REFUSALS if error.status >= 500} == {"server_error"}


# A function of a worker process raises errors about its input alone.
OF_INPUT = [
    error for error in REFUSALS if error.status in (400, 413) and not isinstance(error, errors.MalformedRequest)
]
SENT = [*OF_INPUT, errors.MalformedCheckpoint("gs://a", "b", "c")]


@pytest.mark.parametrize("error", SENT, ids=lambda error: type(error).__name__)
def test_a_refusal_of_another_process_is_the_same_here(error):
    sent = error_of(error_json(error))
    assert (type(sent), str(sent), json.dumps(vars(sent))) == (type(error), str(error), json.dumps(vars(error)))
    assert error_answer(sent, "req_1") == error_answer(error, "req_1")


OTHER_KINDS = [error for error in REFUSALS if error not in OF_INPUT]


@pytest.mark.parametrize("error", [*OTHER_KINDS, errors.EngineStopped("x")], ids=lambda error: type(error).__name__)
def test_a_process_says_nothing_that_only_the_service_knows(error):
    with pytest.raises(EOFError):
        error_of(error_json(error))


@pytest.mark.parametrize(
    "fields",
    [
        {"status": 200}, {"status": "200"}, {"code": "ok"}, {"type": "a"}, {"retry_after_s": "1\r\nset-cookie: a=b"},
        {"message": 1}, {"param": ["a"]}, {"__class__": "a"}, {"with_traceback": 1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["InvalidParameter", "ContextLengthExceeded", "TemplateFailed"])
def test_a_process_that_was_taken_over_sets_no_status_and_no_header(kind, fields):
    with pytest.raises(EOFError):
        error_of(json.dumps([kind, ["a"], {"message": "a", "param": None} | fields]).encode())


class Panic(BaseException):
    """As native libraries written in Rust raise it."""


async def test_a_panic_of_a_native_library_is_an_error_with_an_id():
    class Panicking:
        def __getattr__(self, name):
            return getattr(TOKENIZER, name)

        def encode(self, *_, **__):
            raise Panic

    service = Service(model={"tokenizer": Panicking()})
    answer = await service.complete("a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]


@pytest.mark.parametrize("error", [*REFUSALS, *FAULTS], ids=lambda error: type(error).__name__)
def test_every_error_has_the_four_keys_and_a_code_in_the_log(error):
    place = scope()
    failure = logged_error_answer(error, place)
    body = failure.body["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"]
    assert body["type"]
    assert place[CALL].log_fields["error_code"] == body["code"]
    assert ("retry-after" in failure.headers) is (failure.status in (429, 503))


ANTHROPICS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error",
    504: "timeout_error",
}  # fmt: skip


@pytest.mark.parametrize("error", [*REFUSALS, *FAULTS], ids=lambda error: type(error).__name__)
def test_on_anthropics_paths_an_error_has_their_shape_and_a_type_of_theirs(error):
    usual = logged_error_answer(error, scope())
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        failure = logged_error_answer(error, scope() | {"path": path})
        assert (failure.status, failure.headers) == (usual.status, usual.headers)
        assert failure.body == {
            "type": "error",
            "error": {
                "type": ANTHROPICS.get(failure.status, "invalid_request_error"),
                "message": usual.body["error"]["message"],
                "details": {"error_code": usual.body["error"]["code"], "param": usual.body["error"]["param"]},
            },
            "request_id": "req_1",
        }


def test_the_time_to_wait_is_the_errors_own():
    assert error_answer(errors.Overloaded(running=1, limit=1, retry_after_s=7), "req_1").headers["retry-after"] == "7"


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_fault_of_ours_shows_an_id_and_no_detail(error, caplog):
    failure = error_answer(error, "req_1")
    assert failure.status >= 500
    assert "req_1" in failure.body["error"]["message"]
    assert "secret" not in str(failure.body)
    assert len(caplog.records) == 1


def test_a_refusal_is_nothing_to_log(caplog):
    for error in REFUSALS:
        error_answer(error, "req_1")
    assert not caplog.records


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (errors.MalformedCheckpoint("gs://b/m", "norm.weight", "is missing."), "norm.weight: is missing."),
        (errors.UnsupportedModel("/srv/m", "config.json: model_type 'x'."), "config.json: model_type 'x'."),
        (errors.MissingFile("/srv/m", "Set TOKENIZER_URI, for instance hf://org/name."), "Set TOKENIZER_URI"),
        (errors.MissingFile("/srv/m", "is not in gs://secret/x."), None),
        (errors.MissingFile("/srv/m", "is not in /srv/other."), None),
        (errors.TransferFailed("gs://b/m", "a", "HTTP 503"), None),
    ],
)
def test_clients_see_why_files_cannot_be_loaded_and_no_address(error: errors.CheckpointError, shown: str | None):
    assert (error.shown or "").startswith(shown or "")
    assert (error.shown is None) is (shown is None)
    failed = errors.ModelLoadFailed("m", str(error), error.shown)
    assert error.uri not in str(failed)
    assert (shown or "/admin/models") in str(failed)
