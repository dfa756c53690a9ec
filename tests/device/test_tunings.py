"""Tunings are taken as XLA wrote them, or not at all, with one line that says why."""

from importlib.metadata import version

import pytest

from benchmarks.device_check import tunings as checked
from service.device import tunings
from service.device.chips import H100, H200, L4, RTX_PRO_6000
from service.device.gpu_target import PROCESSORS, target_config
from service.device.tunings import FIRST_LINE, file_name, kept_tunings, sealed

KIND = H100.device_kind
WRITTEN = b'entries {\n  key { target { device: "699b92c0fb30cb16" } }\n}\n' * 100


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(tunings, "FOLDER", tmp_path)
    return tmp_path / file_name(KIND)


def test_a_whole_file_of_this_xla_and_this_gpu_is_taken_and_warns_of_nothing(path, caplog):
    assert path.name == "NVIDIA-H100-80GB-HBM3.textproto"
    path.write_bytes(sealed(WRITTEN, KIND))
    kept = kept_tunings(KIND)
    assert kept is not None
    assert kept.path == path
    assert not caplog.records
    assert kept_tunings(L4.device_kind) is None  # of which there are none
    assert not caplog.records


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "does not begin"),
        (WRITTEN, "does not begin"),
        (bytes(range(256)), "does not begin"),
        (sealed(WRITTEN, KIND)[:50], "does not begin"),
        (sealed(WRITTEN, KIND)[:-1], "truncated"),
        (sealed(WRITTEN, KIND) + b"\n", "truncated"),
        (sealed(WRITTEN, KIND).replace(b"699b", b"799b", 1), "changed"),
        (sealed(WRITTEN, L4.device_kind), "it is of NVIDIA L4"),
        (
            sealed(WRITTEN, KIND).replace(f"jaxlib {version('jaxlib')}".encode(), b"jaxlib 0.4.1"),
            f"it is of jaxlib 0.4.1, and this is {version('jaxlib')}",
        ),
    ],
)
def test_any_other_file_is_ignored_with_one_line(path, caplog, data, part):
    path.write_bytes(data)
    assert [kept_tunings(KIND), kept_tunings(KIND)] == [None, None]
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"the kept tunings of {KIND} are ignored: ")
    assert part in record.getMessage()
    assert record.file == str(path)


def test_the_files_in_the_repository_are_whole():
    for path in tunings.FOLDER.glob("*"):
        found = FIRST_LINE.match(path.read_bytes())
        assert found is not None
        assert path.name == file_name(found["device"].decode())
        assert sealed(path.read_bytes()[found.end() :], found["device"].decode()).endswith(found["sha256"])


def test_where_xla_times_nothing_the_check_keeps_nothing_and_passes(tmp_path):
    [row] = checked.keep(tmp_path / "written.textproto", tmp_path)
    assert row["passed"]
    assert list(tmp_path.iterdir()) == []


DUMP = f"""
import json, pathlib, sys
assert pathlib.Path(sys.argv[1]).read_bytes() == {WRITTEN!r}, "XLA cannot read it"
pathlib.Path(sys.argv[2], "module_0001.gpu_target_config.pbtxt").write_text({target_config(H100, "13.0")!r})
print(json.dumps({KIND!r}))
"""


def test_the_check_seals_what_xla_wrote_if_xla_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr(checked, "LOAD", DUMP)  # of a process on a GPU
    monkeypatch.setattr(tunings, "FOLDER", tmp_path)
    written = tmp_path / "written.textproto"
    written.write_bytes(WRITTEN[:-1])
    [refused] = checked.keep(written, tmp_path)
    assert not refused["passed"]
    assert "XLA cannot read it" in refused["note"]
    assert kept_tunings(KIND) is None
    written.write_bytes(WRITTEN)
    assert [row["passed"] for row in checked.keep(written, tmp_path)] == [True, True]
    assert kept_tunings(L4.device_kind) is None
    assert (tmp_path / file_name(KIND)).read_bytes() == sealed(WRITTEN, KIND)


@pytest.mark.parametrize("chip", [H100, H200, L4, RTX_PRO_6000])
def test_the_check_names_what_differs_between_a_gpu_and_its_target(chip):
    text = target_config(chip, "13.0")
    assert checked.differences(text, chip.device_kind) == []
    clock_ghz = PROCESSORS[chip.device_kind].clock_ghz
    [difference] = checked.differences(text.replace(f"{clock_ghz}", "1.23"), chip.device_kind)
    assert difference == f"clock_rate_ghz is 1.23, not {clock_ghz}"
