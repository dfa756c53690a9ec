"""Combined sums of parts are the sum of their concatenation."""

from pathlib import Path

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
