"""The routes of batches: what they refuse, and whose batches they show."""

import pytest

from service.storage.folder_store import FolderStore
from tests.api.batch.running import ENDPOINT, BatchService, request_line, running

pytestmark = pytest.mark.anyio

BODY = {"input_file_id": "file-1", "endpoint": ENDPOINT, "completion_window": "24h"}
SHORT = {"anchor": "created_at", "seconds": 1}
ONE, TWO = {"Authorization": "Bearer sk-one"}, {"Authorization": "Bearer sk-two"}


@pytest.fixture
def service(tmp_path):
    return BatchService(FolderStore(tmp_path))


def code_of(answer, status=400):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["code"], answer.json()["error"]["param"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("invalid_value", "input_file_id")),
        ({"input_file_id": None}, ("missing_required_parameter", "input_file_id")),
        ({"input_file_id": "../../etc/passwd"}, ("invalid_value", "input_file_id")),
        ({"endpoint": "/v1/moderations"}, ("invalid_value", "endpoint")),
        ({"completion_window": "1h"}, ("invalid_value", "completion_window")),
        ({"metadata": {"a": 1}}, ("invalid_value", "metadata.a")),
        ({"metadata": {str(i): "" for i in range(17)}}, ("invalid_value", "metadata")),
        ({"output_expires_after": SHORT}, ("invalid_value", "output_expires_after.seconds")),
        ({"output_expires_after": {"seconds": 3600}}, ("missing_required_parameter", "output_expires_after.anchor")),
    ],
)  # fmt: skip
async def test_a_field_is_refused_by_its_name(service, changes, expected):
    assert code_of(await service.post("/v1/batches", BODY | changes)) == expected
    assert service.batches.store.list("") == {}


async def test_a_result_is_not_an_input(tmp_path):
    async with running(tmp_path) as service:
        done = await service.until((await service.begin([request_line("a")]))["id"], "completed")
        again = await service.post("/v1/batches", BODY | {"input_file_id": done["output_file_id"]})
    assert code_of(again) == ("invalid_value", "input_file_id")


async def test_the_copies_of_inputs_are_bounded_with_the_files(tmp_path):
    service = BatchService(FolderStore(tmp_path), max_bytes=2500)
    file_id = (await service.upload(b"x" * 1000)).json()["id"]
    assert (await service.post("/v1/batches", BODY | {"input_file_id": file_id})).status_code == 200
    full = await service.post("/v1/batches", BODY | {"input_file_id": file_id})
    assert code_of(full, 413) == ("storage_limit_exceeded", "file")


async def test_batches_are_listed_the_newest_first(service):
    ids = [(await service.begin([request_line("a")]))["id"] for _ in range(3)]
    first = (await service.get("/v1/batches?limit=2")).json()
    assert [batch["id"] for batch in first["data"]] == ids[:0:-1]
    assert (first["object"], first["first_id"], first["last_id"], first["has_more"]) == ("list", ids[2], ids[1], True)
    rest = (await service.get(f"/v1/batches?after={ids[1]}")).json()
    assert ([batch["id"] for batch in rest["data"]], rest["has_more"]) == (ids[:1], False)
    for query, param in (
        ("limit=101", "limit"),
        ("limit=0", "limit"),
        ("after=batch_1", "after"),
    ):
        assert code_of(await service.get(f"/v1/batches?{query}"))[1] == param


async def test_a_batch_is_seen_and_cancelled_with_the_key_that_made_it(tmp_path):
    async with running(tmp_path, api_keys=("sk-one", "sk-two")) as service:
        batch = await service.begin([request_line("a")], headers=ONE)
        path = f"/v1/batches/{batch['id']}"
        done = await service.until(batch["id"], "completed", headers=ONE)
        assert (await service.lines_of(done["output_file_id"], headers=ONE)).keys() == {"a"}
        assert (await service.get("/v1/batches", headers=TWO)).json()["data"] == []
        assert code_of(await service.get(path, headers=TWO), 404) == ("not_found", "batch_id")
        assert code_of(await service.post(f"{path}/cancel", headers=TWO), 404) == ("not_found", "batch_id")
        assert (await service.get(path)).status_code == 401


async def test_methods_that_a_route_lacks_are_405(service):
    async with service.client() as client:
        for method, path in (("DELETE", "/v1/batches"), ("GET", "/v1/batches/b/cancel"), ("PUT", "/v1/files")):
            assert (await client.request(method, path)).status_code == 405
