"""Pages of other origins, before and after the API is imported."""

import httpx
import pytest

from service.api.http.keys import ApiKeys, plain_keys
from service.errors import SettingsError
from service.observability.metrics import Metrics
from service.server.cors import with_cors
from service.settings import Settings
from tests.api.scripted_engine import MODEL, Service
from tests.server.early_app import early_app
from tests.server.test_early import StartingService

pytestmark = pytest.mark.anyio
PAGE, OTHER = "https://chat.example.com", "https://else.example.com"
KEY = {"authorization": "Bearer sk-1"}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def asked_for(method="POST", headers="authorization,content-type,x-stainless-os"):
    return {"access-control-request-method": method, "access-control-request-headers": headers}


def app_of(origins=(PAGE,), *, is_started=True):
    service, keys = StartingService(), ApiKeys(plain_keys(["sk-1"]))
    if is_started:
        service.api = Service(api_keys=["sk-1"]).fastapi
        service.decided.set()
    return with_cors(early_app(service, Metrics(), keys=keys), origins)


async def send(app, method, path, origin=PAGE, headers=None, **options):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, headers={"origin": origin, **(headers or {})}, **options)


@pytest.mark.parametrize("is_started", [True, False])
async def test_a_preflight_needs_no_key(is_started):
    answer = await send(app_of(is_started=is_started), "OPTIONS", "/v1/chat/completions", headers=asked_for())
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]


@pytest.mark.parametrize("is_started", [True, False])
async def test_a_preflight_from_a_foreign_origin_is_refused(is_started):
    app = app_of(is_started=is_started)
    answer = await send(app, "OPTIONS", "/v1/chat/completions", OTHER, asked_for())
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/chat/completions", KEY, 200),
        ("/v1/chat/completions", {}, 401),
        ("/v1/nothing", KEY, 404),
        ("/v1/models", KEY, 405),
    ],
)
async def test_answers_and_errors_can_be_read_by_the_page(path, headers, status):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "colour": 1}
    answer = await send(app_of(), "POST", path, headers=headers, json=body)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
    exposed = answer.headers["access-control-expose-headers"]
    assert {"x-levserve-ignored", "x-request-id"} <= set(exposed.split(", "))
    assert ("x-levserve-ignored" in answer.headers) == (status == 200)


async def test_an_early_answer_can_be_read_by_the_page():
    answer = await send(app_of(is_started=False), "GET", "/health/ready")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (503, PAGE)


async def test_a_foreign_page_cannot_read_answers():
    assert "access-control-allow-origin" not in (await send(app_of(), "GET", "/v1/models", OTHER, KEY)).headers


async def test_any_origin_may_be_allowed():
    answer = await send(app_of(("*",)), "OPTIONS", "/v1/models", OTHER, asked_for("GET"))
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


async def test_it_is_off_unless_origins_are_named():
    app = app_of(Settings().allowed_origins)
    answer = await send(app, "GET", "/v1/models", headers=KEY)
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert (await send(app, "OPTIONS", "/v1/models", headers={**KEY, **asked_for("GET")})).status_code == 405


def test_origins_are_separated_by_commas():
    settings = Settings(cors_origins=f"{PAGE}, tauri://localhost ,http://localhost:3000")
    assert settings.allowed_origins == (PAGE, "tauri://localhost", "http://localhost:3000")


@pytest.mark.parametrize("origins", ["chat.example.com", f"{PAGE}/", "https://*.example.com", f"{PAGE},x"])
def test_what_is_no_origin_stops_the_start(origins):
    with pytest.raises(SettingsError, match="CORS_ORIGINS"):
        Settings(cors_origins=origins)
