"""The operator's routes: who may use them, which models they load and unload, and what they answer."""

import asyncio
import json
import threading

import pytest

from service.api.openapi.admin import AdministeredModel, admin_paths
from service.errors import NotReady
from service.observability.metrics import Metrics
from service.server.admin import ROUTES
from tests.server.early_app import early_app
from tests.server.pool.fake_loads import FakeLoads, pool_of
from tests.server.test_early import StartingService, ask

pytestmark = pytest.mark.anyio

KEY = [(b"authorization", b"Bearer operator")]
NAME = "org/chat"


@pytest.fixture
def anyio_backend():
    return "asyncio"


class OpenService(StartingService):
    """A service whose models are loaded by a test."""

    def __init__(self):
        super().__init__()
        self.loads = FakeLoads(**{NAME: 7})
        self.open_pool = pool_of(self.loads, NAME, "other")


@pytest.fixture
def service():
    return OpenService()


async def asked(service, path, method="GET", headers=KEY):
    metrics = Metrics()
    app = early_app(service, metrics, admin_keys=("operator",))
    status, answer, body = await ask(app, path, method, headers)
    return status, answer, json.loads(body)


async def loaded(service):
    async with asyncio.timeout(20):
        while service.open_pool.report(NAME)["state"] != "ready":
            await asyncio.sleep(0.005)


async def test_a_model_whose_name_has_a_slash_is_loaded_and_unloaded(service):
    may_load = service.loads.hold_back(NAME)
    status, _, body = await asked(service, f"/admin/load/{NAME}", "POST")
    assert (status, body["id"]) == (202, NAME)
    may_load.set()
    await loaded(service)
    status, _, body = await asked(service, f"/admin/load/{NAME}", "POST")
    assert (status, body["state"], body["starts"]) == (200, "ready", 1)
    [first, other] = (await asked(service, "/admin/models"))[2]["data"]
    assert (first["id"], first["memory_bytes"], other["state"]) == (NAME, 7, "available")
    status, _, body = await asked(service, f"/admin/unload/{NAME}", "POST")
    assert (status, body["state"], body["was_loaded"], body["memory_bytes"]) == (200, "available", True, 0)
    assert (await asked(service, "/admin/unload/other", "POST"))[2]["was_loaded"] is False
    assert service.loads.log == [f"load {NAME}", f"unload {NAME}"]


async def test_an_unload_is_answered_once_open_requests_have_ended(service):
    held = await service.open_pool.wait_for(NAME)
    unloading = asyncio.create_task(asked(service, f"/admin/unload/{NAME}", "POST"))
    async with asyncio.timeout(20):
        while not (report := service.open_pool.report(NAME))["is_leaving"]:
            await asyncio.sleep(0.005)
    assert (report["state"], report["open_requests"]) == ("ready", 1)
    assert not unloading.done()
    held.release()
    assert (await unloading)[2]["was_loaded"]


async def test_many_unloads_of_a_busy_model_wait_on_one_thread(service):
    held = await service.open_pool.wait_for(NAME)
    await asyncio.to_thread(lambda: None)  # asyncio's own pool has its first thread
    num_threads = threading.active_count()
    unloading = [asyncio.create_task(asked(service, f"/admin/unload/{NAME}", "POST")) for _ in range(40)]
    async with asyncio.timeout(20):
        while not service.open_pool.report(NAME)["is_leaving"]:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert threading.active_count() <= num_threads + 1
    unloading[0].cancel()  # its client is gone; the others still wait
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in unloading[1:])
    held.release()
    assert {status for status, _, _ in await asyncio.gather(*unloading[1:])} == {200}
    assert service.loads.log == [f"load {NAME}", f"unload {NAME}"]


@pytest.mark.parametrize("path", ["/admin/stats", "/stats", "/admin/models", "/admin/load/other", "/admin/unload/x"])
async def test_nothing_is_done_without_the_key(service, path):
    for headers in ([], [(b"authorization", b"Bearer x")]):
        for method in ("GET", "POST"):
            assert (await asked(service, path, method, headers))[0] == 401
    status, _, body = await ask(early_app(service, Metrics()), path, "POST", KEY)
    assert (status, json.loads(body)["error"]["code"]) == (404, "unknown_url")
    assert service.loads.log == []


@pytest.mark.parametrize(
    ("path", "method", "status", "code"),
    [
        ("/admin/load/x", "POST", 404, "model_not_found"),
        ("/admin/unload/../other", "POST", 404, "model_not_found"),
        ("/admin/load/", "POST", 404, "unknown_url"),
        ("/admin/load/other", "GET", 405, "method_not_allowed"),
        ("/admin/models", "DELETE", 405, "method_not_allowed"),
        ("/admin/x", "GET", 404, "unknown_url"),
    ],
)
async def test_a_wrong_request_is_refused_and_loads_nothing(service, path, method, status, code):
    answered, headers, body = await asked(service, path, method)
    assert (answered, body["error"]["code"]) == (status, code)
    assert headers.get("allow") == (
        {"/admin/load/other": "POST", "/admin/models": "GET"}[path] if status == 405 else None
    )
    assert service.loads.log == []


async def test_a_service_that_starts_shows_its_statistics_and_loads_nothing_by_hand():
    class Starting(StartingService):
        @property
        def open_pool(self):
            raise NotReady(self.summary())

    service = Starting()
    for path in ("/admin/stats", "/stats"):
        assert (await asked(service, path))[2] == {"compiles": 0}
    status, headers, body = await asked(service, "/admin/load/other", "POST")
    assert (status, headers["retry-after"], body["error"]["code"]) == (503, "2", "not_ready")


async def test_the_document_describes_every_route_and_every_field_of_a_model(service):
    paths = admin_paths()
    described = {(path, method.upper()) for path, operations in paths.items() for method in operations}
    assert described == {(path, method) for path, method in ROUTES.items() if path != "/stats"}
    fields = set(AdministeredModel.__annotations__) - {"was_loaded"}
    assert set(service.open_pool.report(NAME)) == fields


async def test_metrics_name_the_route_and_not_the_model(service):
    metrics = Metrics()
    app = early_app(service, metrics, admin_keys=("operator",))
    await ask(app, f"/admin/unload/{NAME}", "POST", KEY)
    labels = {"route": "/admin/unload/{model}", "status": "200"}
    assert metrics.registry.get_sample_value("levserve_http_responses_total", labels) == 1
