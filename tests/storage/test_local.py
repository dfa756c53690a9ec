"""A folder of this machine is listed like a bucket and served in place."""

from pathlib import Path

import pytest

from service.errors import CheckpointNotFound, ObjectChanged
from service.storage.cache.cache import CheckpointCache
from service.storage.location import parse_location
from service.storage.progress import Progress
from service.storage.source import Source, open_source


def opened(path: Path) -> Source:
    return open_source(parse_location(str(path)), cache_root=path / "cache")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("not ours")
    (folder / "data" / "0").write_bytes(b"123")
    (folder / "empty").touch()
    (tmp_path / "blob").write_text("{}")
    (folder / "config.json").symlink_to(tmp_path / "blob")
    return folder


def test_files_are_listed_read_and_pulled_in_place(model: Path):
    source = opened(model)
    objects = source.list()
    assert [(info.name, info.size_bytes) for info in objects] == [("config.json", 2), ("data/0", 3), ("empty", 0)]
    assert source.read(objects[0]) == b"{}"
    pulled = source.pull(objects[:1], CheckpointCache(model / "cache", max_checkpoints=1), Progress())
    assert pulled.path == model
    pulled.release()
    assert not (model / "cache").exists()
    source.close()


def test_what_is_not_there_is_a_clear_error(model: Path):
    with pytest.raises(CheckpointNotFound, match=r"no such folder.*gs://bucket/prefix"):
        opened(model / "nothing").list()
    with pytest.raises(CheckpointNotFound, match="this is a file"):
        opened(model / "data" / "0").list()
    (model / "data" / "0").unlink()
    with pytest.raises(CheckpointNotFound, match="is empty"):
        opened(model / "data").list()


def test_a_file_that_vanished_is_a_clear_error(model: Path):
    source = opened(model)
    objects = source.list()
    (model / "empty").unlink()
    with pytest.raises(ObjectChanged):
        source.read(objects[-1])
