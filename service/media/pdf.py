"""The text of a PDF, with pypdf; imported only by a worker process, since the file's author is not trusted.

pypdf is written in Python: a file that breaks it raises an exception and no more. How large a stream may become
it bounds itself; the process bounds the rest.

Source: https://pypdf.readthedocs.io/en/stable/user/extract-text.html
"""

import io
import json
import logging
from typing import TYPE_CHECKING, NamedTuple

from service.errors import ServiceError, UnreadablePdf

if TYPE_CHECKING:
    from pypdf import PdfReader

MAX_TEXT_CHARS = 2_000_000
MAGIC, MAGIC_BYTES = b"%PDF-", 1024  # within which it stands


class PdfText(NamedTuple):
    """What is written in a PDF."""

    text: str
    num_pages: int


def pdf_text(content: bytes) -> bytes:
    """Return the text of a PDF as `read_pdf_text` reads it; pages are apart by an empty line.

    Raises:
        UnreadablePdf: it is no PDF, is damaged or encrypted, has no text, or too much.
    """
    if MAGIC not in content[:MAGIC_BYTES]:
        raise UnreadablePdf("is no PDF")
    logging.getLogger("pypdf").setLevel(logging.CRITICAL + 1)  # what it says has parts of the file
    try:
        pages = _pages(content)
    except (ServiceError, MemoryError):
        raise
    except Exception as error:  # pypdf raises anything: PdfReadError, KeyError, TypeError, RecursionError, …
        raise UnreadablePdf("is damaged") from error
    text = "\n\n".join(page for page in pages if page)
    if not text:
        raise UnreadablePdf("has no text, as a scan has none")
    return json.dumps({"text": text, "num_pages": len(pages)}).encode()


def read_pdf_text(answer: bytes | bytearray) -> PdfText:
    """Return what `pdf_text` has returned; a ValueError if it is something else."""
    document = json.loads(answer)
    match document:
        case {"text": str(text), "num_pages": int(num_pages)}:
            return PdfText(text, num_pages)
        case _:
            raise ValueError("not the text of a PDF")


def _pages(content: bytes) -> list[str]:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not _is_opened(reader):
        raise UnreadablePdf("is encrypted")
    texts, num_chars = list[str](), 0
    for page in reader.pages:
        text = page.extract_text().encode("utf-8", "replace").decode().strip()
        num_chars += len(text)
        if num_chars > MAX_TEXT_CHARS:
            raise UnreadablePdf(f"has more than {MAX_TEXT_CHARS:,} characters")
        texts.append(text)
    return texts


def _is_opened(reader: "PdfReader") -> bool:
    """Return whether a file that asks no reader for a password can be read."""
    from pypdf import PasswordType
    from pypdf.errors import DependencyError

    try:
        return reader.decrypt("") is not PasswordType.NOT_DECRYPTED
    except DependencyError:  # of AES
        return False
