import pytest

from service.errors import NotReady
from tests.api.scripted_engine import MODEL, Service

pytestmark = pytest.mark.anyio


async def get(service, path):
    async with service.client() as client:
        return await client.get(path)


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/healthz"])
async def test_ready_reports_the_progress_of_the_start(path):
    service = Service()
    response = await get(service, path)
    assert (response.status_code, response.json()["status"]) == (200, "complete")
    service.readiness.error = NotReady("weights")
    response = await get(service, path)
    assert response.status_code == 503
    assert response.json() == {"status": "starting", "phase": "weights", "bytes": 12}
    assert response.headers["retry-after"]


async def test_live_is_true_during_the_start_and_false_when_the_engine_is_gone():
    service = Service()
    service.readiness.error = NotReady("weights")
    assert (await get(service, "/health/live")).status_code == 200
    service.readiness.is_live = False
    assert (await get(service, "/health/live")).status_code == 503


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x"])
async def test_there_is_no_model_before_it_is_ready(path):
    service = Service()
    service.readiness.error = NotReady("weights, 12 bytes of 24", retry_after_s=3)
    response = await get(service, path)
    assert (response.status_code, response.headers["retry-after"]) == (503, "3")
    assert response.json()["error"]["code"] == "not_ready"
    assert (await service.chat()).status_code == 503


async def test_metrics_count_answers_by_route_and_status():
    service = Service()
    await service.chat()
    await service.post("/v1/none")
    text = (await get(service, "/metrics")).text
    assert 'levserve_http_responses_total{route="/v1/chat/completions",status="200"} 1.0' in text
    assert 'levserve_http_responses_total{route="unmatched",status="' in text


async def test_every_route_with_get_has_head():
    service = Service()
    async with service.client() as client:
        paths = [
            path
            for path, methods in (await client.get("/openapi.json")).json()["paths"].items()
            if "get" in methods and "{" not in path and not path.startswith("/admin")
        ]
        assert len(paths) > 10
        for path in [*paths, f"/v1/models/{MODEL}", "/ping"]:
            got, head = await client.get(path), await client.head(path)
            assert (head.status_code, head.headers["content-type"]) == (got.status_code, got.headers["content-type"])
        assert (await client.head("/v1/chat/completions")).status_code == 405
