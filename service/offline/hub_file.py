"""A file of a Hub repository as a seekable stream, with ranged reads, retries and verification.

Source: https://huggingface.co/docs/hub/api (blob ids and sha256 of a repository's files)
"""

import hashlib
import io
import logging
from contextlib import closing
from dataclasses import dataclass
from typing import override

import httpx
from huggingface_hub import hf_hub_url
from huggingface_hub.utils import build_hf_headers

from service.errors import TransferFailed
from service.storage.seekable import SeekableReader

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 8  # of one read, including the first
TIMEOUT_S = 30.0  # without any bytes
PART_BYTES = 16 * 1024 * 1024  # of one request


@dataclass(frozen=True)
class HubEntry:
    """A listed file."""

    name: str
    size_bytes: int
    sha256: str | None  # of a large file
    blob_id: str | None  # git's SHA-1 of a small file


class HubFile(SeekableReader):
    """The bytes of a file at one commit; the last bytes are returned only if the Hub's digest matches.

    Reading raises TransferFailed if it does not.
    """

    def __init__(self, uri: str, repo: str, commit: str, entry: HubEntry) -> None:
        """Open a file; nothing is read yet.

        Raises:
            TransferFailed: the Hub provides no digest.
        """
        super().__init__()
        expected = entry.sha256 or entry.blob_id
        if expected is None:
            raise TransferFailed(uri, entry.name, "the Hub provides no digest, so it cannot be verified.")
        self._expected = expected
        self._digest = hashlib.sha256() if entry.sha256 else hashlib.sha1(f"blob {entry.size_bytes}\0".encode())
        self._uri, self._entry = uri, entry
        self._url = hf_hub_url(repo, entry.name, revision=commit)
        self.size_bytes, self._num_digested = entry.size_bytes, 0
        self._client = httpx.Client(headers=build_hf_headers(), timeout=TIMEOUT_S, follow_redirects=True)

    @override
    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        num_bytes = min(len(buffer), PART_BYTES, self.size_bytes - self._position)
        if num_bytes <= 0:
            return 0
        part = self._part(self._position, num_bytes)
        self._verify(part)
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    @override
    def close(self) -> None:
        self._client.close()
        super().close()

    def _part(self, start: int, num_bytes: int) -> bytes:
        headers = {"Range": f"bytes={start}-{start + num_bytes - 1}", "Accept-Encoding": "identity"}
        reason = ""
        for _ in range(MAX_ATTEMPTS):
            try:
                answer = self._client.get(self._url, headers=headers)
                body = answer.content if answer.status_code == httpx.codes.PARTIAL_CONTENT else b""
                if answer.status_code == httpx.codes.OK:  # a server without ranges
                    body = answer.content[start : start + num_bytes]
                if len(body) == num_bytes:
                    return body
                reason = f"the Hub returned HTTP {answer.status_code} with {len(body)} of {num_bytes} bytes"
            except httpx.TransportError as error:
                reason = f"the connection was lost ({type(error).__name__})"
            logger.warning("retrying a read", extra={"file": self._entry.name, "from": start, "reason": reason})
        raise TransferFailed(self._uri, self._entry.name, f"{reason}, {MAX_ATTEMPTS} times. Run the import again.")

    def _verify(self, part: bytes) -> None:
        # A writer that retries a chunk reads it again; each byte is digested once.
        new = part[max(0, self._num_digested - self._position) :] if self._position <= self._num_digested else b""
        self._digest.update(new)
        self._num_digested += len(new)
        if self._num_digested == self.size_bytes and self._digest.hexdigest() != self._expected:
            reason = f"its digest is {self._digest.hexdigest()}, the Hub says {self._expected}. Run the import again."
            raise TransferFailed(self._uri, self._entry.name, reason)


def opened(uri: str, repo: str, commit: str, entry: HubEntry) -> closing[io.BufferedReader]:
    """Open a buffered file for an upload, which reads parts of any size."""
    return closing(io.BufferedReader(HubFile(uri, repo, commit, entry), PART_BYTES))
