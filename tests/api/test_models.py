import pytest

from tests.api.scripted_engine import MAX_MODEL_LEN, MODEL, Service

pytestmark = pytest.mark.anyio

DOCUMENT = {
    "id": MODEL,
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "levserve",
    "root": MODEL,
    "parent": None,
    "max_model_len": MAX_MODEL_LEN,
    "dtype": "float32",
    "quantization": "int8",
    "kv_dtype": "float32",
    "state": "ready",
    "capabilities": ["chat/completions", "responses", "messages", "completions"],
}


async def get(path, **model):
    async with Service(model=model).client() as client:
        return await client.get(path)


async def test_the_list_has_the_served_model():
    assert (await get("/v1/models")).json() == {"object": "list", "data": [DOCUMENT]}


async def test_a_model_of_several_names_is_listed_and_found_by_each():
    names = {"other_names": ("org/alias", "gpt-4")}
    listed = (await get("/v1/models", **names)).json()["data"]
    assert [(model["id"], model["root"]) for model in listed] == [
        (name, MODEL) for name in (MODEL, "org/alias", "gpt-4")
    ]
    assert (await get("/v1/models/gpt-4", **names)).json() == DOCUMENT | {"id": "gpt-4"}
    service = Service(model=names)
    assert (await service.chat(model="org/alias")).json()["model"] == "org/alias"
    error = (await service.complete(model="gpt-5")).json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'org/alias', 'gpt-4'" in error["message"]


@pytest.mark.parametrize("model_id", [MODEL, MODEL.replace("/", "%2F")])
async def test_a_model_is_found_by_its_name_with_a_slash(model_id):
    assert (await get(f"/v1/models/{model_id}")).json() == DOCUMENT


@pytest.mark.parametrize("model_id", ["gpt-4", "org", "/org"])
async def test_another_model_is_not_found(model_id):
    response = await get(f"http://test/v1/models/{model_id}")
    assert response.status_code == 404
