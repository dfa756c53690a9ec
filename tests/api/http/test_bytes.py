"""What clients, proxies and editors do to bytes: line ends in text, slashes in paths, marks before bodies, headers."""

import io
import json

import pytest

from service.api.batch.lines import numbered_lines
from service.api.http.access_log import tidy_path
from service.engine.request import FinishReason
from tests.api.scripted_engine import MODEL, Service, tokens
from tests.api.vectors.scripted_encoder import EncoderService

pytestmark = pytest.mark.anyio

TEXT = "a\u2028b\u2029c\u0085d é🌍\x0b\x0c\x1c"
HI = [{"role": "user", "content": "hi"}]
STREAMS = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi", "max_tokens": 99},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 99},
    "/api/chat": {"messages": HI},
    "/api/generate": {"prompt": "hi"},
}


@pytest.mark.parametrize("path", STREAMS)
async def test_each_line_of_a_stream_is_one_to_every_reader(path):
    service = Service([*tokens(TEXT), FinishReason.STOP])
    response = await service.post(path, {"model": MODEL, "stream": True} | STREAMS[path])
    text = response.content.decode()
    assert text.splitlines() == text.removesuffix("\n").split("\n")
    documents = [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if "{" in line]
    assert all(character in json.dumps(documents, ensure_ascii=False) for character in "\u2028\u2029\u0085")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("//v1///chat//completions/", "/v1/chat/completions"),
        ("/v1/models/", "/v1/models"),
        ("/v1//models/org/name", "/v1/models/org/name"),
        ("/v1/models/hf://org/name", "/v1/models/hf://org/name"),
        ("/v1/models//org/name/", "/v1/models/org/name"),
        ("//", "/"),
        ("//health", "//health"),
        ("/", "/"),
        ("", ""),
    ],
)
def test_a_slash_too_many_says_nothing(path, expected):
    assert tidy_path(path) == expected


async def test_a_slash_too_many_reaches_the_route_and_its_key():
    service = Service(api_keys=["sk-one"])
    for path in ("/v1//chat/completions", "/v1/chat/completions/", "/v1/messages//"):
        body = {"model": MODEL, "messages": HI, "max_tokens": 5}
        assert (await service.post(path, body)).status_code == 401
        assert (await service.post(path, body, headers={"authorization": "Bearer sk-one"})).status_code == 200


@pytest.mark.parametrize("padding", [0, 100_000])
async def test_a_byte_order_mark_before_a_body_is_no_part_of_it(padding):
    fields = {"model": MODEL, "messages": HI, "metadata": {"a": "é" * padding}}
    body = json.dumps(fields).encode("utf-8-sig")
    async with Service().client() as client:
        headers = {"content-type": "application/json"}
        response = await client.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 200, response.text


def test_a_byte_order_mark_before_a_batch_is_no_part_of_it():
    assert list(numbered_lines(io.BytesIO(b"\xef\xbb\xbf{}\n{}"), 99)) == [(1, b"{}\n"), (2, b"{}")]


async def test_headers_are_short_whatever_was_ignored():
    fields = {f"{number:03}{'x' * 190}": number for number in range(200)}
    response = await Service().chat(**fields)
    assert response.status_code == 200
    assert sum(len(name) + len(value) + 4 for name, value in response.headers.raw) < 4096
    assert "more" in response.headers["x-levserve-ignored"]


@pytest.mark.parametrize("stated", [{"input": ""}, {"input": []}, {}])
async def test_an_empty_input_of_ollamas_has_no_vector(stated):
    service = EncoderService()
    response = await service.post("/api/embed", **stated)
    assert (response.status_code, response.json()["embeddings"]) == (200, [])
    response = await service.post("/api/embeddings", **stated)
    assert (response.status_code, response.json()) == (200, {"embedding": []})
