"""Routes with and without a key, and the answer of a route that does not exist."""

import asyncio

import pytest
from fastapi.routing import APIRoute

from service.api.http.probes import PROBE_PATHS
from tests.api.scripted_engine import MODEL, Service

pytestmark = pytest.mark.anyio

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE")
ROUTES = {
    "/api/chat",
    "/api/embed",
    "/api/embeddings",
    "/api/generate",
    "/api/ps",
    "/api/show",
    "/api/tags",
    "/api/version",
    "/detokenize",
    "/extract_text",
    "/health",
    "/health/live",
    "/health/ready",
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/tokenize",
    "/tokenizer_info",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/decisions",
    "/embedding",
    "/embeddings",
    "/pooling",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v2/rerank",
    "/rerank",
    "/reranking",
    "/v1/reranking",
    "/score",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/v1/models/{model_id:path}",
    "/v1/responses",
    "/v1/responses/{response_id}",
    "/v1/responses/{response_id}/cancel",
    "/v1/responses/{response_id}/input_items",
    "/get_load",
    "/get_model_info",
    "/get_server_info",
    "/invocations",
    "/loads",
    "/kv_event_sources",
    "/metrics/load",
    "/model_info",
    "/ping",
    "/server_info",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/loads",
    "/v1/messages/render",
    "/v1/responses/render",
    "/version",
}


def paths(app):
    return {route.path for route in _flat(app.routes)}


def _flat(routes):
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from _flat(getattr(route, "routes", None) or route.original_router.routes)


def variants(path):
    return [path, f"/{path}", f"{path}/", path.upper(), f"{path}%20", f"{path}//", f"/x/..{path}", f"{path};a=b"]


async def test_the_routes_are_these():
    service = Service()
    await service.fastapi.state.routes.complete()
    assert paths(service.fastapi) == ROUTES


async def test_routes_that_few_clients_use_are_there_for_the_first_request():
    service = Service()
    assert "/v1/embeddings" not in paths(service.fastapi)
    body = {"model": MODEL, "input": "a"}
    answers = await asyncio.gather(*(service.post("/v1/embeddings", body) for _ in range(3)), service.post("/v1/no"))
    assert [answer.json()["error"]["code"] for answer in answers] == [*["unsupported_model"] * 3, "unknown_url"]
    assert (await service.post("/v1/no")).status_code == 404


async def test_nothing_but_health_is_open_by_any_method_or_spelling():
    service = Service(api_keys=("key",))
    async with service.client() as client:
        for path in sorted(ROUTES - PROBE_PATHS | {"/docs", "/openapi.json", "/redoc", "/admin/stats", "/"}):
            for variant in variants(path.replace("{model_id:path}", "org/small-chat")):
                for method in METHODS:
                    response = await client.request(method, f"http://test{variant}")
                    assert response.status_code in (401, 404, 405), (method, variant, response.status_code)
    assert not service.engine.streams


async def test_a_spelling_of_health_is_not_health():
    service = Service(api_keys=("key",))
    async with service.client() as client:
        for path in ("//health", "/health/", "/HEALTH", "/health/../v1/models", "/health;x"):
            assert (await client.get(f"http://test{path}")).status_code in (401, 404)


@pytest.mark.parametrize("path", ["/", "/docs", "/redoc", "/v1", "/v1/images", "/v1/models-x"])
async def test_a_route_that_is_not_there_is_a_404_in_openais_shape(path):
    async with Service().client() as client:
        response = await client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-length": "9" * 12}])
async def test_a_wrong_method_is_a_405_whatever_its_body(method, headers):
    async with Service().client() as client:
        response = await client.request(method, "/v1/models", content=b"x", headers=headers)
    assert (response.status_code, set(response.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


async def test_a_wrong_method_is_a_405_that_names_the_right_one():
    async with Service().client() as client:
        response = await client.get("/v1/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["error"]["code"] == "method_not_allowed"


async def test_no_origin_is_allowed():
    async with Service().client() as client:
        response = await client.get("/v1/models", headers={"origin": "https://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
