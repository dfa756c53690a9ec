"""POST /extract_text: the text of a PDF, and what it refuses."""

import pytest

from service.api.work.media import MAX_PDF_BYTES
from tests.api.scripted_engine import Service
from tests.media.pdf_files import pdf, picture_pdf

pytestmark = pytest.mark.anyio


async def post(content, *, headers=None, data=None, **options):
    service = Service([], **options)
    try:
        async with service.client() as client:
            files = {"file": ("a.pdf", content)}
            return await client.post("/extract_text", files=files, data=data, headers=headers)
    finally:
        service.fastapi.state.context.media.end()


async def test_the_text_of_a_pdf_comes_with_its_number_of_pages():
    answer = await post(pdf("Hello", "world"), data={"colour": "red"})
    assert answer.json() == {"text": "Hello\n\nworld", "num_pages": 2}
    assert answer.headers["x-levserve-ignored"] == "colour"


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        pytest.param(picture_pdf(), 400, "invalid_pdf", id="a scan"),
        pytest.param(b"text", 400, "invalid_pdf", id="no PDF"),
        pytest.param(bytes(MAX_PDF_BYTES + 2**20), 413, "request_too_large", id="too large"),
    ],
)
async def test_what_cannot_be_read_is_refused(content, status, code):
    answer = await post(content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_it_asks_for_a_key_and_a_form():
    assert (await post(pdf("x"), api_keys=("sk-1",))).status_code == 401
    async with Service([]).client() as client:
        assert (await client.post("/extract_text", json={})).status_code == 415
