"""The meaning of every status of the bucket, and connections that are used again."""

import json
from collections.abc import Iterator
from email.utils import formatdate
from time import sleep, time

import pytest
from google.auth.exceptions import RefreshError, TransportError

from service.errors import AccessDenied, CheckpointNotFound, ObjectChanged, TransferFailed
from service.storage.gcs.http import GcsTransport
from service.storage.location import GcsLocation
from service.storage.retry import TransientFault
from tests.stored import quick_limits

VERSION = ("model.safetensors", 7)


@pytest.fixture
def transport(answers) -> Iterator[GcsTransport]:
    transport = GcsTransport(GcsLocation("my-bucket", "model"), answers.endpoint, quick_limits())
    yield transport
    transport.close()


def get(transport, version=VERSION, headers=None):
    return transport.get("o/a%2Fb", {"alt": "media", "generation": 7}, headers or {}, version)


def test_a_request_names_bucket_object_and_query(answers, transport):
    get(transport, headers={"Range": "bytes=0-4"}).close()
    [(path, headers)] = answers.requests
    assert path == "/storage/v1/b/my-bucket/o/a%2Fb?alt=media&generation=7"
    assert headers["Range"] == "bytes=0-4"
    assert "Authorization" not in headers


@pytest.mark.parametrize("status", [200, 206])
def test_an_answer_is_read_to_its_end(answers, transport, status):
    answers.status, answers.body = status, b"0123456789"
    with get(transport) as response:
        assert response.status == status
        assert response.read(100) == b"0123456789"
    with get(transport) as response:
        buffer, received = memoryview(bytearray(4)), b""
        while num_bytes := response.readinto(buffer):
            received += bytes(buffer[:num_bytes])
        assert received == b"0123456789"


def test_a_chunked_answer_is_read_to_its_end(answers, transport):
    answers.body, answers.is_chunked = b"0123456789", True
    with get(transport) as response:
        buffer, received = memoryview(bytearray(4)), b""
        while num_bytes := response.readinto(buffer):
            received += bytes(buffer[:num_bytes])
        assert received == b"0123456789"


def test_a_connection_is_used_again_once_its_answer_was_read(answers, transport):
    answers.body = b"0123456789"
    for _ in range(3):
        with get(transport) as response:
            response.read(100)
    assert len(set(answers.ports)) == 1
    with get(transport) as response:
        response.read(4)
    with get(transport) as response:
        assert response.read(100) == b"0123456789"
    assert len(set(answers.ports)) == 2


def test_a_connection_that_the_server_closes_is_not_used_again(answers, transport):
    answers.body, answers.headers_sent = b"0123456789", {"Connection": "close"}
    for _ in range(2):
        with get(transport) as response:
            assert response.read(100) == b"0123456789"
    assert len(set(answers.ports)) == 2


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("version", [None, VERSION])
def test_a_status_that_may_pass_is_a_reason_to_try_again(answers, transport, status, version):
    answers.status = status
    with pytest.raises(TransientFault, match=f"HTTP {status}") as caught:
        get(transport, version)
    assert caught.value.retry_after_s is None


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("soon", None),
        ("-7", None),
    ],
)
def test_the_wait_that_the_server_asks_for_is_a_number_of_seconds(answers, transport, header, seconds):
    answers.status, answers.headers_sent = 503, {"Retry-After": header}
    with pytest.raises(TransientFault) as caught:
        get(transport)
    assert caught.value.retry_after_s == seconds


@pytest.mark.parametrize(("from_now_s", "seconds"), [(3600, 3600.0), (-3600, 0.0)])
def test_the_wait_that_the_server_asks_for_may_end_at_a_date(answers, transport, from_now_s, seconds):
    answers.status, answers.headers_sent = 503, {"Retry-After": formatdate(time() + from_now_s, usegmt=True)}
    with pytest.raises(TransientFault) as caught:
        get(transport)
    assert caught.value.retry_after_s == pytest.approx(seconds, abs=100)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    ("version", "permission"), [(None, "storage.objects.list is not"), (VERSION, "storage.objects.get is not")]
)
def test_a_refusal_names_the_permission_and_what_the_server_says(answers, transport, status, version, permission):
    answers.status = status
    answers.body = json.dumps({"error": {"message": "ann@x may\nnot\u00fcread. "}}).encode()
    with pytest.raises(AccessDenied, match=rf"HTTP {status}, {permission} allowed \(ann@x may not read\)\.") as caught:
        get(transport, version)
    assert "gs://my-bucket --member=serviceAccount:ACCOUNT " in str(caught.value)
    assert caught.value.uri == "gs://my-bucket/model"


def test_nothing_there_is_no_bucket_or_a_changed_object(answers, transport):
    answers.status = 404
    with pytest.raises(CheckpointNotFound, match="there is no bucket 'my-bucket'") as missing:
        get(transport, None)
    assert missing.value.uri == "gs://my-bucket/model"
    for status in (404, 412, 416):
        answers.status = status
        with pytest.raises(ObjectChanged) as changed:
            get(transport)
        assert (changed.value.uri, changed.value.name, changed.value.generation) == ("gs://my-bucket/model", *VERSION)


@pytest.mark.parametrize(
    ("status", "version", "name"),
    [(400, VERSION, VERSION[0]), (400, None, "listing"), (412, None, "listing"), (301, VERSION, VERSION[0])],
)
def test_any_other_status_ends_the_transfer(answers, transport, status, version, name):
    answers.status, answers.body = status, b'{"error": {"message": "no such thing"}}'
    with pytest.raises(TransferFailed, match=rf"HTTP {status} \(no such thing\)") as caught:
        get(transport, version)
    assert (caught.value.uri, caught.value.name) == ("gs://my-bucket/model", name)


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"error": 7}', b'{"error": {"message": ""}}', b'"x"'])
def test_a_server_that_says_nothing_sensible_is_not_quoted(answers, transport, body):
    answers.status, answers.body = 400, body
    with pytest.raises(TransferFailed, match=r"HTTP 400(?! \()"):
        get(transport)


def test_a_long_message_of_the_server_is_cut(answers, transport):
    answers.status, answers.body = 400, json.dumps({"error": {"message": "x" * 1000}}).encode()
    with pytest.raises(TransferFailed, match=r"HTTP 400 \(x{200}\)"):
        get(transport)


def test_a_server_that_is_not_there_is_a_reason_to_try_again(answers):
    transport = GcsTransport(GcsLocation("b", ""), "127.0.0.1:9", quick_limits())
    with pytest.raises(TransientFault, match=r"the connection broke \(ConnectionRefusedError\)"):
        get(transport)


def test_closing_the_transport_closes_its_connections(answers, transport):
    get(transport).close()
    assert answers.num_ended == []
    transport.close()
    wait_until(lambda: answers.num_ended)


def wait_until(is_true) -> None:
    deadline = time() + 30
    while not is_true():
        assert time() < deadline
        sleep(0.01)


class Credentials:
    """Credentials that give a token, and fail as the test wants it."""

    service_account_email = "levserve@project.iam.gserviceaccount.com"

    def __init__(self) -> None:
        self.token, self.error, self.asked = "old", None, []

    def before_request(self, request, method, url, headers) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append((method, url))
        headers["authorization"] = f"Bearer {self.token}"

    def refresh(self, request) -> None:
        self.token = "new"


@pytest.fixture
def credentials(answers, monkeypatch) -> Credentials:
    credentials = Credentials()
    monkeypatch.setattr("google.auth.default", lambda scopes: (credentials, None))
    monkeypatch.setattr("service.storage.gcs.http.ENDPOINT", answers.endpoint)
    return credentials


@pytest.fixture
def authorized(credentials) -> Iterator[GcsTransport]:
    transport = GcsTransport(GcsLocation("my-bucket", "model"), None, quick_limits())
    yield transport
    transport.close()


def test_a_request_carries_a_token_and_its_own_headers(answers, credentials, authorized):
    get(authorized, headers={"Range": "bytes=0-4"}).close()
    [(path, headers)] = answers.requests
    assert (headers["authorization"], headers["Range"]) == ("Bearer old", "bytes=0-4")
    assert credentials.asked == [("GET", answers.endpoint + path)]


def test_a_refused_token_is_renewed_once(answers, credentials, authorized):
    answers.status = 401
    with pytest.raises(AccessDenied, match="serviceAccount:levserve@project"):
        get(authorized)
    assert [headers["authorization"] for _, headers in answers.requests] == ["Bearer old", "Bearer new"]
    answers.status = 403
    with pytest.raises(AccessDenied):
        get(authorized)
    assert len(answers.requests) == 3


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (TransportError("no route"), TransientFault, r"the connection broke \(TransportError\)"),
        (TimeoutError(), TransientFault, "the read timed out"),
        (RefreshError("busy", retryable=True), TransientFault, "no access token was issued"),
        (RefreshError("revoked"), AccessDenied, r"the credentials were not accepted \(RefreshError\)"),
    ],
)
def test_credentials_that_fail_are_tried_again_if_that_may_help(credentials, authorized, error, kind, reason):
    credentials.error = error
    with pytest.raises(kind, match=reason) as caught:
        get(authorized)
    assert caught.value.__cause__ is error


def test_an_account_without_an_address_is_not_named(answers, credentials, authorized):
    credentials.service_account_email = "default"
    transport = GcsTransport(GcsLocation("my-bucket", "model"), None, quick_limits())
    answers.status = 403
    with pytest.raises(AccessDenied, match="serviceAccount:ACCOUNT "):
        get(transport)
    transport.close()
