"""Bodies with images may be larger than others, where a model sees; over a real socket."""

import json

import httpx
import pytest

from service.api.backend import ModelState, ready_state
from service.server.connection import Connection
from tests.api.scripted_engine import MODEL, Service
from tests.api.test_seeing import service_of
from tests.media.image_files import drawing, image_file
from tests.sighted import data_url, shown
from tests.sockets import served

TEXT_BYTES, IMAGE_BYTES = 64 * 1024, 512 * 1024
LIMITS = {"max_body_bytes": TEXT_BYTES, "max_image_body_bytes": IMAGE_BYTES}
CHATS = "/v1/chat/completions"
LARGE = data_url(image_file("PNG", drawing(190, 190).effect_spread(90), compress_level=0))


def body(messages, **fields):
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 5} | fields).encode()


def post(service, content, path=CHATS):
    """Return the status and the error of the answer."""
    with served(service.app, Connection) as server:
        host, port = server.address
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"http://{host}:{port}{path}", content=content, headers=headers, timeout=60)
    context = service.fastapi.state.context
    context.media.end()
    context.long_bodies.process.end()
    return answer.status_code, answer.json().get("error")


def sighted():
    return service_of(limits=LIMITS)


def test_a_body_with_images_may_be_larger():
    assert TEXT_BYTES < len(content := body(shown(LARGE))) < IMAGE_BYTES
    service = sighted()
    assert post(service, content)[0] == 200
    assert len(service.engine.last.request.media) == 5


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/invocations"])
def test_other_routes_of_chats_take_as_much(path):
    content = body(shown(LARGE)) if path == "/invocations" else b"{" + b" " * 2 * TEXT_BYTES
    assert post(sighted(), content, path)[0] == (200 if path == "/invocations" else 400)  # read, and no JSON


def test_the_bound_of_bodies_with_images_is_named():
    status, error = post(sighted(), b" " * (IMAGE_BYTES + 1))
    assert (status, error["code"]) == (413, "request_too_large")
    assert f"{IMAGE_BYTES} bytes (MAX_IMAGE_BODY_BYTES)" in error["message"]


def test_text_beside_images_has_the_bound_of_text():
    status, error = post(sighted(), body(shown(data_url(), text="a" * 2 * TEXT_BYTES)))
    assert (status, error["code"], error["param"]) == (413, "request_too_large", "messages")
    assert f"{TEXT_BYTES} bytes (MAX_BODY_BYTES)" in error["message"]


def test_a_body_that_states_no_length_has_the_bound_of_text():
    status, error = post(sighted(), iter([body(shown(LARGE))]))
    assert (status, "MAX_BODY_BYTES" in error["message"]) == (413, True)


def test_routes_without_images_have_the_bound_of_text():
    status, error = post(sighted(), b" " * (TEXT_BYTES + 1), "/v1/completions")
    assert (status, "MAX_BODY_BYTES" in error["message"]) == (413, True)


def test_a_model_of_text_has_the_bound_of_text():
    status, error = post(Service(**LIMITS), body(shown(LARGE)))
    assert (status, error["code"]) == (413, "request_too_large")
    assert f"{TEXT_BYTES} bytes (MAX_BODY_BYTES)" in error["message"]


def test_a_model_of_text_beside_one_that_sees_has_the_bound_of_text():
    service = Service(**LIMITS)
    not_loaded = ModelState(names=("eyes",), created=1, state="available", max_model_len=None)
    service.readiness.listed = lambda: [ready_state(service.readiness.model), not_loaded]
    status, error = post(service, body(shown(LARGE)))
    assert (status, error["param"]) == (413, "messages")
