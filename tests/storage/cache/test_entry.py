"""An entry of the cache: its name, its record, and what is trusted of its files."""

import json
import os
import stat
from pathlib import Path

import pytest

from service.storage.cache.cache import CheckpointCache
from service.storage.cache.entry import CacheEntry, FileStat
from service.storage.crc32c import extend, to_text
from service.storage.files import try_lock
from service.storage.objects import ObjectInfo

URI = "gs://bucket/my model"
DATA = {"config.json": b"{}", "data/0": b"123", "empty": b""}
OBJECTS = tuple(ObjectInfo(name, len(data), to_text(extend(0, data)), 7) for name, data in DATA.items())
SUMS = {info.name: info.crc32c for info in OBJECTS}


@pytest.fixture
def entry(tmp_path: Path) -> CacheEntry:
    """An entry whose files are there and that was completed."""
    entry = CacheEntry.of(tmp_path, URI, OBJECTS)
    for name, data in DATA.items():
        (entry.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (entry.folder / name).write_bytes(data)
    entry.complete(URI, OBJECTS, SUMS)
    return entry


def record(entry: CacheEntry) -> dict:
    return json.loads((entry.folder / "COMPLETE.json").read_text())


def is_unchanged(entry: CacheEntry) -> bool:
    lock = entry.try_hold_unchanged(OBJECTS)
    if lock is None:
        return False
    lock.release()
    return True


@pytest.mark.parametrize(
    ("uri", "beginning"),
    [
        ("gs://bucket/org/My_Model.v1", "My_Model.v1-"),
        ("gs://bucket/my model!?x", "my-model-x-"),
        ("gs://bucket/..", "checkpoint-"),
        ("gs://bucket/.hidden-", "hidden-"),
        ("gs://bucket/ü", "checkpoint-"),
        ("gs://bucket/" + "x" * 99, "x" * 48 + "-"),
    ],
)
def test_a_name_is_readable_and_safe_and_ends_with_a_digest(tmp_path: Path, uri: str, beginning: str):
    name = CacheEntry.of(tmp_path, uri, OBJECTS).name
    assert name.startswith(beginning)
    assert len(name.removeprefix(beginning)) == 20
    assert name == CacheEntry.of(tmp_path, uri, OBJECTS[::-1]).name


@pytest.mark.parametrize("change", [{"generation": 8}, {"size_bytes": 9}, {"crc32c": "AAAAAA=="}, {"name": "other"}])
def test_another_version_of_any_object_is_another_entry(tmp_path: Path, change: dict):
    facts = {"name": "config.json", "size_bytes": 2, "crc32c": SUMS["config.json"], "generation": 7}
    changed = (ObjectInfo(**(facts | change)), *OBJECTS[1:])
    assert CacheEntry.of(tmp_path, URI, changed).name != CacheEntry.of(tmp_path, URI, OBJECTS).name
    assert CacheEntry.of(tmp_path, "gs://other/my model", OBJECTS).name != CacheEntry.of(tmp_path, URI, OBJECTS).name


def test_everything_of_an_entry_lies_side_by_side(tmp_path: Path):
    entry = CacheEntry(tmp_path, "name")
    assert entry.folder == tmp_path / "name"
    assert (entry.pull_lock, entry.use_lock) == (tmp_path / "name.lock", tmp_path / "name.use")
    assert entry.quarantine == tmp_path / "name.corrupt"


def test_the_record_holds_the_listing_and_the_sums(entry: CacheEntry):
    content = record(entry)
    assert (content["format_version"], content["uri"]) == (1, URI)
    assert [file["info"]["name"] for file in content["files"]] == list(DATA)
    assert [file["crc32c"] for file in content["files"]] == list(SUMS.values())


def test_a_complete_entry_is_trusted_by_the_stat_of_its_files(entry: CacheEntry):
    assert is_unchanged(entry)
    assert entry.has_valid_files(OBJECTS)
    path = entry.folder / "data/0"
    status = path.stat()
    path.write_bytes(b"456")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert is_unchanged(entry)
    assert not entry.has_valid_files(OBJECTS)


@pytest.mark.parametrize("change", ["time", "size", "replaced", "gone", "link", "folder"])
def test_any_other_stat_is_a_doubt(entry: CacheEntry, change: str):
    path = entry.folder / "data/0"
    status = path.stat()
    if change == "time":
        os.utime(path, ns=(1, 1))
    elif change == "size":
        path.write_bytes(b"1234")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "replaced":
        other = path.with_name("other")
        other.write_bytes(b"123")
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(path)
    else:
        path.unlink()
        if change == "link":
            path.symlink_to(entry.folder / "config.json")
        elif change == "folder":
            path.mkdir()
    assert not is_unchanged(entry)


def test_only_regular_files_have_a_stat(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    status = (tmp_path / "file").stat()
    assert FileStat.of(tmp_path / "file") == FileStat(3, status.st_mtime_ns, status.st_ino)
    assert [FileStat.of(tmp_path / name) for name in ("link", "nothing", ".")] == [None, None, None]


def test_an_entry_of_other_objects_counts_as_none(entry: CacheEntry):
    for objects in (OBJECTS[:2], (*OBJECTS, ObjectInfo("more", 0))):
        assert entry.try_hold_unchanged(objects) is None
        assert not entry.has_valid_files(objects)
        assert not entry.repair(URI, objects, verify_fully=True)


def test_a_held_entry_is_not_held_exclusively_by_another(entry: CacheEntry):
    before = entry.use_lock
    with entry.hold(), entry.hold():
        assert try_lock(before) is None
    os.utime(before, (1, 1))
    with entry.hold():
        assert before.stat().st_mtime > 1
    lock = entry.try_hold_unchanged(OBJECTS)
    assert lock is not None
    assert try_lock(before) is None
    lock.release()
    with try_lock(before):
        assert entry.try_hold_unchanged(OBJECTS) is None


def test_repair_sets_wrong_files_aside_where_only_this_user_reads_them(entry: CacheEntry, caplog):
    (entry.folder / "data/0").write_bytes(b"456")
    (entry.folder / "config.json").unlink()
    assert not entry.repair(URI, OBJECTS, verify_fully=False)
    assert (entry.quarantine / "data/0").read_bytes() == b"456"
    assert stat.S_IMODE((entry.quarantine / "data").stat().st_mode) == 0o700
    assert not (entry.folder / "data/0").exists()
    assert not (entry.folder / "COMPLETE.json").exists()
    assert {record.object for record in caplog.records} == {"data/0", "config.json"}
    assert caplog.records[0].quarantine == str(entry.quarantine)
    # A second damage of the same file replaces the first in the quarantine.
    (entry.folder / "data/0").write_bytes(b"123")
    (entry.folder / "config.json").write_bytes(b"{}")
    entry.complete(URI, OBJECTS, SUMS)
    (entry.folder / "data/0").write_bytes(b"789")
    assert not entry.repair(URI, OBJECTS, verify_fully=False)
    assert (entry.quarantine / "data/0").read_bytes() == b"789"


def test_repair_looks_at_the_bytes_of_files_that_changed_or_at_all(entry: CacheEntry):
    assert entry.repair(URI, OBJECTS, verify_fully=False)
    path = entry.folder / "data/0"
    status = path.stat()
    path.write_bytes(b"456")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert entry.repair(URI, OBJECTS, verify_fully=False)
    assert not entry.repair(URI, OBJECTS, verify_fully=True)


def test_repair_records_right_bytes_with_their_new_stat(entry: CacheEntry):
    before = record(entry)
    entry.repair(URI, OBJECTS, verify_fully=False)
    assert record(entry) == before
    (entry.folder / "data/0").write_bytes(b"123")
    os.utime(entry.folder / "data/0", ns=(1, 1))
    assert not is_unchanged(entry)
    assert entry.repair(URI, OBJECTS, verify_fully=False)
    assert is_unchanged(entry)
    assert record(entry)["uri"] == URI


def test_an_incomplete_entry_keeps_whole_files_alone(entry: CacheEntry):
    (entry.folder / "COMPLETE.json").unlink()
    (entry.folder / "data/0").write_bytes(b"456")
    packed = ObjectInfo("empty", 0, SUMS["empty"], 7, "gzip")
    objects = (*OBJECTS[:2], packed, ObjectInfo("nothing", 1, "AAAAAA=="))
    assert entry.sums_of_whole_files(objects) == {"config.json": SUMS["config.json"]}


def test_only_parts_are_removed(entry: CacheEntry):
    for name in (".a.1.b.part", "data/.0.part", "data/x.part", ".hidden"):
        (entry.folder / name).write_bytes(b"x")
    entry.remove_parts()
    names = {path.relative_to(entry.folder).as_posix() for path in entry.folder.rglob("*") if path.is_file()}
    assert names == {*DATA, "COMPLETE.json", "data/x.part", ".hidden"}


def test_a_cache_is_a_folder_of_its_own_below_its_root(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CheckpointCache(Path("~/cache"), max_checkpoints=1).root == tmp_path / "cache"


def test_an_entry_that_is_evicted_before_it_is_locked_is_not_held(entry: CacheEntry, monkeypatch: pytest.MonkeyPatch):
    def lock_too_late(path: Path, *, is_shared: bool = False):
        (entry.folder / "COMPLETE.json").unlink()
        return try_lock(path, is_shared=is_shared)

    monkeypatch.setattr("service.storage.cache.entry.try_lock", lock_too_late)
    assert entry.try_hold_unchanged(OBJECTS) is None
    lock = try_lock(entry.use_lock)
    assert lock is not None  # nobody holds it
    lock.release()
