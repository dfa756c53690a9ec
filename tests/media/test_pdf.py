"""PDFs to text, in a worker process: what is written, what cannot be read, and files that are hostile."""

import random
from io import BytesIO

import psutil
import pytest
from pypdf import PdfReader, PdfWriter

from service.errors import PdfTooLaborious, UnreadablePdf
from service.media.pdf import MAX_TEXT_CHARS, pdf_text, read_pdf_text
from service.worker.process import WorkerProcess
from tests.media.pdf_files import circular_forms, content, laughing_forms, pdf, pdf_of, picture_pdf, zip_bomb

MEMORY_BYTES = 2**29


@pytest.fixture(scope="module")
def process():
    made = WorkerProcess(failure=PdfTooLaborious, memory_bytes=MEMORY_BYTES, processor_s=2.0)
    yield made
    made.end()


def text_of(process, file):
    return read_pdf_text(process.call(pdf_text, file).content)


def test_pages_come_in_their_order(process):
    assert text_of(process, pdf("Hello, world.\nSecond line: 5 € é", "Page two")) == (
        "Hello, world.\nSecond line: 5 € é\n\nPage two",
        2,
    )


def test_what_stands_before_a_file_and_an_empty_page_do_not_matter(process):
    assert text_of(process, pdf("one", "", "three", before=b"\n\r\n")) == ("one\n\nthree", 3)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        pytest.param(b"", "is no PDF", id="empty"),
        pytest.param(b"PK\x03\x04" + bytes(5000), "is no PDF", id="another format"),
        pytest.param(b"%PDF-1.7\n", "is damaged", id="head alone"),
        pytest.param(picture_pdf(), "has no text", id="a scan"),
        pytest.param(pdf_of([]), "has no text", id="no page"),
        pytest.param(
            pdf("x", trailer=b"/Encrypt << /Filter /Standard /V 5 /R 6 >>"), "is", id="encrypted, and damaged"
        ),
    ],
)
def test_what_has_no_text_to_read_says_why(process, file, reason):
    with pytest.raises(UnreadablePdf, match=reason):
        text_of(process, file)


@pytest.mark.slow
def test_a_text_that_is_too_long_is_refused(process):
    with pytest.raises(UnreadablePdf, match=f"more than {MAX_TEXT_CHARS:,}"):
        text_of(process, pdf(*["word " * 20_000] * 21))


def test_a_file_with_a_password_says_so(process):
    for password, algorithm in (("secret", "RC4-128"), ("", "RC4-40")):
        writer, written = PdfWriter(PdfReader(BytesIO(pdf("under lock")))), BytesIO()
        writer.encrypt(password, owner_password="owner", algorithm=algorithm)
        writer.write(written)
        if password:
            with pytest.raises(UnreadablePdf, match="is encrypted"):
                text_of(process, written.getvalue())
        else:
            assert text_of(process, written.getvalue()).text == "under lock"


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(zip_bomb, id="a stream that unpacks to a gigabyte"),
        pytest.param(laughing_forms, id="forms that draw forms"),
        pytest.param(circular_forms, id="a form that draws itself"),
        pytest.param(lambda: pdf_of([b"q " * 5_000_000]), id="states that are never left"),
        pytest.param(lambda: pdf_of([b"[" * 200_000]), id="lists in lists"),
    ],
)
@pytest.mark.slow
def test_a_bomb_ends_by_its_limits_and_the_next_file_is_read(process, bomb):
    with pytest.raises((UnreadablePdf, PdfTooLaborious)):
        text_of(process, bomb())
    if process.pid is not None:
        assert psutil.Process(process.pid).memory_info().rss < MEMORY_BYTES
    assert text_of(process, pdf("next")).text == "next"


@pytest.mark.slow
def test_no_damaged_file_ends_the_process(process):
    whole, drawn = pdf("Hello world", "Page two"), random.Random(5)
    text_of(process, whole)
    starts = process.num_starts
    for _ in range(300):
        file = bytearray(whole)
        for _ in range(drawn.randint(1, 30)):
            file[drawn.randrange(len(file))] = drawn.randrange(256)
        try:
            found = text_of(process, bytes(file))
        except UnreadablePdf:
            continue
        assert found.text
    assert process.num_starts == starts


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"text": 1, "num_pages": 1}', b'{"text": "x"}', b"\xff"])
def test_an_answer_that_is_no_text_is_refused(answer):
    with pytest.raises(ValueError):  # noqa: PT011
        read_pdf_text(answer)


def test_the_content_of_a_page_is_what_is_drawn():
    assert content("a(b)") == b"BT /F 12 Tf 72 720 Td 14 TL (a b ) Tj T* ET"
