"""What clients name and send is bounded by kind: labels of series, characters of forms, places of what ends others."""

import pytest

from service.api.http.request_queue import Caps
from service.storage.folder_store import FolderStore
from tests.api.batch.running import BatchService
from tests.api.scripted_engine import MODEL, Service

pytestmark = pytest.mark.anyio


def num_series(service):
    return sum(len(metric.samples) for metric in service.metrics.registry.collect())


async def test_names_that_clients_choose_make_no_series():
    service = Service()
    names = [f"invented_{number}" for number in range(400)] + ["model", "tools", "messages"]
    bodies = [
        {"chat_template_kwargs": dict.fromkeys(names, 1)},
        dict.fromkeys(names[:400], 1),
        {"messages": [{"role": "user", "content": "hi", **dict.fromkeys(names[:400], 1)}]},
    ]
    user = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    await service.post("/v1/chat/completions", user)
    before = num_series(service)
    for body in bodies:
        assert (await service.post("/v1/chat/completions", user | body)).status_code == 200
    assert num_series(service) - before <= 2 * 2  # two fields, each with the moment of its creation


@pytest.mark.parametrize(
    "charset", ["raw_unicode_escape", "punycode", "undefined", "utf-16", "utf-7", "latin-1", "zlib"]
)
@pytest.mark.parametrize("path", ["/v1/files", "/v1/audio/transcriptions"])
async def test_forms_are_in_utf_8(tmp_path, charset, path):
    service = BatchService(FolderStore(tmp_path / "place"))
    content = (
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="\\ud800.jsonl"\r\n\r\n{}\r\n--b--\r\n'
    )
    headers = {"content-type": f"multipart/form-data; boundary=b; charset={charset}"}
    async with service.client() as client:
        answer = await client.post(path, content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    listed = await service.get("/v1/files")
    assert (listed.status_code, listed.json()["data"]) == (200, [])


def form_with(headers):
    part = b"".join(b"%s: %s\r\n" % header for header in headers)
    return (
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n' + part + b"\r\n{}\r\n--b--\r\n"
    )


MANY = [(b"x-%d" % number, b"a") for number in range(8)]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        # Of uploads the library bounds them, since 0.0.34; of recordings, which are kept in memory, we do.
        ("/v1/files", [(b"x", b"a" * 5000)]),
        ("/v1/files", MANY),
        ("/v1/audio/transcriptions", [(b"x", b"a" * 1100)]),
        ("/v1/audio/transcriptions", [(b"x" * 1100, b"a")]),
        ("/v1/audio/transcriptions", MANY),
    ],
)
async def test_the_headers_of_a_part_are_few_and_short(tmp_path, path, headers):
    service = BatchService(FolderStore(tmp_path / "place"))
    async with service.client() as client:
        options = {"headers": {"content-type": "multipart/form-data; boundary=b"}}
        refused = await client.post(path, content=form_with(headers), **options)
        assert (refused.status_code, "not a valid form" in refused.json()["error"]["message"]) == (400, True)
        other = await client.post(path, content=form_with([(b"x", b"a" * 900)]), **options)
        assert "not a valid form" not in other.text


async def test_what_ends_others_takes_no_place():
    service = Service(caps=Caps(max_requests=0))
    assert (await service.complete("a")).status_code == 429
    for kind in ("responses", "batches"):
        assert (await service.post(f"/v1/{kind}/x/cancel", {})).status_code != 429
