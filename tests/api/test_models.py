import pytest

from tests.api.scripted_engine import MAX_MODEL_LEN, MODEL, Service

pytestmark = pytest.mark.anyio

DOCUMENT = {
    "id": MODEL,
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "levserve",
    "max_model_len": MAX_MODEL_LEN,
}


async def get(path):
    async with Service().client() as client:
        return await client.get(path)


async def test_the_list_has_the_served_model():
    assert (await get("/v1/models")).json() == {"object": "list", "data": [DOCUMENT]}


@pytest.mark.parametrize("model_id", [MODEL, MODEL.replace("/", "%2F")])
async def test_a_model_is_found_by_its_name_with_a_slash(model_id):
    assert (await get(f"/v1/models/{model_id}")).json() == DOCUMENT


@pytest.mark.parametrize("model_id", ["gpt-4", "", "org", "org/small-chat/"])
async def test_another_model_is_not_found(model_id):
    response = await get(f"http://test/v1/models/{model_id}")
    assert response.status_code == 404
