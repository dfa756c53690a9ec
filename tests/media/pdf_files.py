"""PDFs, written by hand: pages of text, pictures of text, and files that are hostile."""

import zlib
from collections.abc import Sequence

FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"


def pdf(*pages: str, before: bytes = b"", trailer: bytes = b"") -> bytes:
    """Return a PDF whose pages have these texts, a line each."""
    return pdf_of([content(text) for text in pages], before=before, trailer=trailer)


def content(text: str) -> bytes:
    """Return what draws the lines of a text."""
    lines = [line.encode("cp1252").translate(_ESCAPES) for line in text.splitlines()]
    return b"BT /F 12 Tf 72 720 Td 14 TL " + b" ".join(b"(%b) Tj T*" % line for line in lines) + b" ET"


_ESCAPES = bytes(32 if byte in b"()\\" else byte for byte in range(256))


def pdf_of(
    contents: Sequence[bytes],
    forms: Sequence[bytes] = (),
    *,
    entries: bytes = b"",
    before: bytes = b"",
    trailer: bytes = b"",
) -> bytes:
    """Return a PDF of pages that draw these contents, each of which may name a form by `/X0`, `/X1`, …

    Args:
        contents: one of each page, as it is stored.
        forms: contents that pages and forms may draw.
        entries: of the dictionary of each page's content, such as a filter.
        before: what comes before the file.
        trailer: further entries of the trailer.
    """
    num_pages, first_form = len(contents), 4 + 2 * len(contents)
    names = b" ".join(b"/X%d %d 0 R" % (i, first_form + i) for i in range(len(forms)))
    resources = b"/Resources << /Font << /F 3 0 R >> /XObject << %b >> >>" % names
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(num_pages))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%b] /Count %d /MediaBox [0 0 612 792] >>" % (kids, num_pages),
        FONT,
    ]
    for i, stored in enumerate(contents):
        objects.append(b"<< /Type /Page /Parent 2 0 R /Contents %d 0 R %b >>" % (5 + 2 * i, resources))
        objects.append(_stream(entries, stored))
    form = b"/Type /XObject /Subtype /Form /BBox [0 0 612 792] " + resources
    objects += [_stream(form, stored) for stored in forms]
    file, places = bytearray(before + b"%PDF-1.7\n"), []
    for number, body in enumerate(objects, start=1):
        places.append(len(file) - len(before))
        file += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start = len(file) - len(before)
    file += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    file += b"".join(b"%010d 00000 n \n" % place for place in places)
    file += b"trailer\n<< /Size %d /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, trailer, start)
    return bytes(file)


def picture_pdf() -> bytes:
    """Return a PDF whose page is a picture, as a scanner writes one."""
    return pdf_of([b"q 612 0 0 792 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \x00 EI Q"])


def zip_bomb(num_bytes: int = 2**30) -> bytes:
    """Return a PDF whose page unpacks to very many bytes."""
    packer, zeros = zlib.compressobj(9), bytes(2**20)
    packed = b"".join(packer.compress(zeros) for _ in range(num_bytes // 2**20)) + packer.flush()
    return pdf_of([zlib.compress(packed)], entries=b"/Filter [/FlateDecode /FlateDecode]")


def laughing_forms(depth: int = 12) -> bytes:
    """Return a PDF whose page draws a form ten times, which draws another ten times, and so on."""
    forms = [b" ".join(b"/X%d Do" % (i + 1) for _ in range(10)) for i in range(depth)]
    return pdf_of([b"/X0 Do"], [*forms, content("ha")])


def circular_forms() -> bytes:
    """Return a PDF with a form that draws itself."""
    return pdf_of([b"/X0 Do"], [b"/X0 Do"])


def _stream(entries: bytes, stored: bytes) -> bytes:
    return b"<< %b /Length %d >>\nstream\n%b\nendstream" % (entries, len(stored), stored)
