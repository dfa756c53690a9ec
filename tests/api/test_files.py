"""Uploads, listings and downloads of files, each seen with its own key alone."""

import asyncio

import pytest

from service.api.batch.batches import MAX_UPLOADS
from service.storage.folder_store import FolderStore
from tests.api.batch.running import BatchService
from tests.api.scripted_engine import Service

pytestmark = pytest.mark.anyio

ONE, TWO = {"Authorization": "Bearer sk-one"}, {"Authorization": "Bearer sk-two"}


@pytest.fixture
def service(tmp_path):
    return BatchService(FolderStore(tmp_path / "place"))


async def error_of(answer, status=400):
    assert answer.status_code == status, answer.text
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    return answer.json()["error"]["code"], answer.json()["error"]["param"]


async def test_an_upload_is_described_listed_downloaded_and_deleted(service):
    content = "{}\n“é”\n".encode() * 1000
    stored = (await service.upload(content)).json()
    assert stored | {"id": "", "created_at": 0, "expires_at": 0} == {
        "id": "", "object": "file", "bytes": len(content), "created_at": 0, "expires_at": 0, "filename": "in.jsonl",
        "purpose": "batch", "status": "processed", "status_details": None,
    }  # fmt: skip
    assert stored["expires_at"] == stored["created_at"] + 30 * 24 * 3600
    assert (await service.get(f"/v1/files/{stored['id']}")).json() == stored
    assert (await service.get("/v1/files")).json()["data"] == [stored]
    downloaded = await service.get(f"/v1/files/{stored['id']}/content")
    assert downloaded.content == content
    assert "in.jsonl" in downloaded.headers["content-disposition"]
    async with service.client() as client:
        deleted = await client.delete(f"/v1/files/{stored['id']}")
        assert deleted.json() == {"id": stored["id"], "object": "file", "deleted": True}
        assert await error_of(await client.delete(f"/v1/files/{stored['id']}"), 404) == ("not_found", "file_id")
    assert (await service.get("/v1/files")).json() == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip
    assert list(service.batches.store.list("")) == [f"open/files/{stored['id']}/record.json"]  # says that it is gone


async def test_a_file_ends_when_its_upload_says(service):
    stored = (
        await service.upload(b"{}", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})
    ).json()
    assert stored["expires_at"] == stored["created_at"] + 3600


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"purpose": "fine-tune"}, ("unsupported_parameter", "purpose")),
        ({"purpose": "nonsense"}, ("invalid_value", "purpose")),
        ({"purpose": ["batch", "batch"]}, ("invalid_value", "purpose")),
        ({"expires_after[anchor]": "created_at"}, ("missing_required_parameter", "expires_after.seconds")),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, ("invalid_value", "expires_after.anchor")),
        *[
            ({"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds},
             ("invalid_value", "expires_after.seconds"))
            for seconds in ("3599", "2592001", "x", "-1", "9" * 400)
        ],
    ],
)  # fmt: skip
async def test_a_field_of_the_form_is_refused_by_its_name(service, fields, expected):
    assert await error_of(await service.upload(b"{}", **fields)) == expected
    assert service.batches.store.list("") == {}


async def test_a_form_without_a_file_or_of_many_parts_is_refused(service):
    async with service.client() as client:
        missing = await client.post("/v1/files", files={"purpose": (None, "batch")})
        assert await error_of(missing) == ("missing_required_parameter", "file")
        text = await client.post("/v1/files", files={"purpose": (None, "batch"), "file": (None, "{}")})
        assert await error_of(text) == ("invalid_value", "file")
        several = await client.post("/v1/files", files=[("file", ("a", b"1")), ("file", ("b", b"2"))])
        assert (await error_of(several))[1] is None
        broken = await client.post(
            "/v1/files", content=b"no form", headers={"content-type": "multipart/form-data; boundary=x"}
        )
        assert broken.status_code == 400
        json_body = await client.post("/v1/files", json={"purpose": "batch"})
        assert await error_of(json_body, 415) == ("unsupported_media_type", None)
        long_name = await client.post("/v1/files", files={"file": ("n" * 256, b"1")}, data={"purpose": "batch"})
        assert await error_of(long_name) == ("invalid_value", "file")
    assert service.batches.store.list("") == {}


async def test_a_file_and_all_files_are_bounded(tmp_path):
    service = BatchService(FolderStore(tmp_path), max_file_bytes=50_000, max_bytes=120_000)
    assert (await error_of(await service.upload(b"x" * 70_000), 413))[0] == "request_too_large"
    first = (await service.upload(b"x" * 50_000)).json()
    await service.upload(b"x" * 50_000)
    full = await service.upload(b"x" * 50_000)
    assert await error_of(full, 413) == ("storage_limit_exceeded", "file")
    async with service.client() as client:
        await client.delete(f"/v1/files/{first['id']}")
    assert (await service.upload(b"x" * 50_000)).status_code == 200


async def test_a_few_uploads_are_read_at_once(service):
    at_once = most = 0
    is_full = asyncio.Event()

    async def slow_form():
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == MAX_UPLOADS:
            await asyncio.sleep(0.02)  # so that one more would have begun
            is_full.set()
        await is_full.wait()
        at_once -= 1
        yield b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n--x--\r\n'

    async with service.client(headers={"content-type": "multipart/form-data; boundary=x"}) as client:
        answers = await asyncio.gather(*(client.post("/v1/files", content=slow_form()) for _ in range(12)))
    assert {answer.status_code for answer in answers} == {200}
    assert most == MAX_UPLOADS


async def test_a_list_is_read_page_by_page_in_either_order(service):
    ids = [(await service.upload(b"{}")).json()["id"] for _ in range(5)]
    newest = (await service.get("/v1/files?limit=2")).json()
    assert [entry["id"] for entry in newest["data"]] == ids[:2:-1]
    assert (newest["first_id"], newest["last_id"], newest["has_more"]) == (ids[4], ids[3], True)
    rest = (await service.get(f"/v1/files?limit=3&after={newest['last_id']}")).json()
    assert ([entry["id"] for entry in rest["data"]], rest["has_more"]) == (ids[2::-1], False)
    oldest = (await service.get("/v1/files?order=asc&limit=1")).json()
    assert oldest["data"][0]["id"] == ids[0]
    assert (await service.get("/v1/files?purpose=batch_output")).json()["data"] == []
    assert len((await service.get("/v1/files?purpose=batch")).json()["data"]) == 5


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("limit=0", ("invalid_value", "limit")),
        ("limit=10001", ("invalid_value", "limit")),
        (f"limit={'9' * 5000}", ("invalid_value", "limit")),
        ("limit=x", ("invalid_value", "limit")),
        ("limit=1&limit=2", ("invalid_value", "limit")),
        ("order=up", ("invalid_value", "order")),
        ("after=file-0", ("invalid_value", "after")),
    ],
)
async def test_a_parameter_of_a_list_is_refused_by_its_name(service, query, expected):
    assert await error_of(await service.get(f"/v1/files?{query}")) == expected


@pytest.mark.parametrize("file_id", ["file-1", "..", "..%2f..%2fsecret", "file-" + "g" * 32, "%00", "file-" + "0" * 32])
async def test_an_id_is_never_a_path(service, tmp_path, file_id):
    (tmp_path / "secret").write_text("secret")
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{file_id}"):
        answer = await service.get(path)
        assert answer.status_code == 404, path
        assert "secret" not in answer.text.replace(file_id, "")


async def test_files_are_seen_with_the_key_that_made_them(tmp_path):
    service = BatchService(FolderStore(tmp_path), api_keys=("sk-one", "sk-two"))
    stored = (await service.upload(b"{}", headers=ONE)).json()
    assert (await service.get("/v1/files", headers=ONE)).json()["data"] == [stored]
    assert (await service.get("/v1/files", headers=TWO)).json()["data"] == []
    for path in ("", "/content"):
        assert (await service.get(f"/v1/files/{stored['id']}{path}", headers=ONE)).status_code == 200
        assert (await service.get(f"/v1/files/{stored['id']}{path}", headers=TWO)).status_code == 404
        assert (await service.get(f"/v1/files/{stored['id']}{path}")).status_code == 401
    body = {"input_file_id": stored["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    assert await error_of(await service.post("/v1/batches", body, headers=TWO)) == ("invalid_value", "input_file_id")


async def test_a_place_that_fails_is_a_503(tmp_path):
    (tmp_path / "place").write_text("a file, where a folder should be")
    service = BatchService(FolderStore(tmp_path / "place"))
    assert await error_of(await service.upload(b"{}"), 503) == ("files_unavailable", None)


async def test_without_a_place_there_are_no_such_routes():
    async with Service().client() as client:
        assert (await client.get("/v1/files")).json()["error"]["code"] == "unknown_url"
        assert (await client.post("/v1/batches", json={})).status_code == 404
