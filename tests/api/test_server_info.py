"""What SGLang's router and smg ask of a worker."""

import pytest

from tests.api.scripted_engine import MAX_MODEL_LEN, MODEL, Service
from tests.api.vectors.scripted_encoder import MODEL as ENCODER
from tests.api.vectors.scripted_encoder import EncoderService

pytestmark = pytest.mark.anyio


async def get(service, path):
    async with service.client() as client:
        return await client.get(path)


def busy_service():
    service = Service()
    load = service.metrics.of_model(MODEL).load
    load.num_running, load.num_waiting, load.num_slots = 3, 2, 4
    load.page_size, load.num_pages, load.num_used_pages = 16, 100, 25
    return service


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_a_model_is_described(path):
    info = (await get(Service(), path)).json()
    assert info["model_path"] == info["served_model_name"] == MODEL
    assert info["is_generation"] is True
    assert (await get(EncoderService(), path)).json()["is_generation"] is False
    assert (await get(EncoderService(), path)).json()["model_path"] == ENCODER


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_the_service_is_described_with_its_load(path):
    info = (await get(busy_service(), path)).json()
    assert info["max_model_len"] == MAX_MODEL_LEN
    assert (info["max_running_requests"], info["max_total_num_tokens"]) == (4, 1600)
    assert info["internal_states"][0]["num_running_reqs"] == 3
    assert info["version"]


@pytest.mark.parametrize("path", ["/v1/loads?include=core,disagg,queues,memory", f"/loads?model={MODEL}", "/v1/loads"])
async def test_the_load_has_what_runs_waits_and_is_full(path):
    answer = await get(busy_service(), path)
    assert "x-levserve-ignored" not in answer.headers
    [load] = answer.json()["loads"]
    expected = {
        "num_running_reqs": 3,
        "num_waiting_reqs": 2,
        "num_total_reqs": 5,
        "num_used_tokens": 400,
        "max_total_num_tokens": 1600,
        "token_usage": 0.25,
        "utilization": 0.75,
    }
    assert expected.items() <= load.items()
    assert load["queues"]["waiting"] == 2


async def test_parts_that_are_not_asked_for_are_left_out():
    assert "queues" not in (await get(busy_service(), "/v1/loads?include=core")).json()["loads"][0]


async def test_the_loads_of_several_models_add_up():
    service = busy_service()
    other = service.metrics.of_model("other").load
    other.num_running, other.num_slots, other.page_size, other.num_pages = 1, 4, 32, 50
    [load] = (await get(service, "/v1/loads")).json()["loads"]
    assert (load["num_running_reqs"], load["max_total_num_tokens"], load["token_usage"]) == (4, 3200, 0.125)


async def test_earlier_routers_read_a_list():
    assert (await get(busy_service(), "/get_load")).json() == [
        {"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 400}
    ]


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/v1/loads?include=core,colour", 400, "include"),
        ("/v1/loads?format=prometheus", 400, "format"),
        ("/v1/loads?model=other", 404, "model"),
        ("/model_info?model=other", 404, "model"),
    ],
)
async def test_what_is_not_there_is_refused(path, status, param):
    answer = await get(busy_service(), path)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_no_events_of_the_cache_are_published():
    answer = await get(Service(), "/kv_event_sources")
    assert (answer.status_code, answer.json()) == (200, [])


async def test_headers_of_pickers_and_routers_change_nothing():
    headers = {"x-session-id": "a", "x-llm-d-inference-fairness-id": "b", "x-llm-d-slo-ttft-ms": "soon"}
    answer = await Service().post("/v1/completions", {"model": MODEL, "prompt": "Once"}, headers=headers)
    assert answer.status_code == 200
    assert "x-levserve-ignored" not in answer.headers
