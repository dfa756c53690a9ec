"""Combined sums of parts are the sum of their concatenation."""

from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.storage import crc32c


def test_the_sum_is_the_standards():
    # Source: RFC 3720 appendix B.4, the check value of "123456789".
    assert crc32c.extend(0, b"123456789") == 0xE3069283
    assert crc32c.to_text(0) == "AAAAAA=="


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_combined_sums_are_the_sum_of_the_whole(parts: list[bytes]):
    combined = 0
    for part in parts:
        combined = crc32c.combine(combined, crc32c.extend(0, part), len(part))
    assert combined == crc32c.extend(0, b"".join(parts))


def test_a_files_sum_is_that_of_its_bytes(tmp_path: Path):
    path = tmp_path / "file"
    data = bytes(range(256)) * 40_000
    path.write_bytes(data)
    assert crc32c.of_file(path) == crc32c.extend(0, data)


def test_a_sum_is_written_as_google_writes_it():
    # Source: RFC 3720 appendix B.4, and `gcloud storage hash` of the same bytes.
    assert crc32c.to_text(crc32c.extend(0, b"123456789")) == "4waSgw=="
    assert crc32c.to_text(0) == "AAAAAA=="
    assert crc32c.extend(crc32c.extend(0, b"1234"), np.frombuffer(b"56789", np.uint8)) == 0xE306_9283


def test_a_file_is_summed_whatever_its_length(tmp_path, monkeypatch):
    monkeypatch.setattr(crc32c, "CHUNK_BYTES", 4)
    for content in (b"", b"1", b"1234", b"123456789"):
        (tmp_path / "file").write_bytes(content)
        assert crc32c.of_file(tmp_path / "file") == google_crc32c.value(content)


@pytest.mark.parametrize("num_bytes", [0, 1, 2, 3, 1000, 65_537])
def test_the_sum_of_two_parts_is_that_of_the_whole(num_bytes):
    first, second = b"first", b"x" * num_bytes
    combined = crc32c.combine(google_crc32c.value(first), google_crc32c.value(second), num_bytes)
    assert combined == google_crc32c.value(first + second)
