"""A folder of this machine is listed like a bucket and served in place."""

from pathlib import Path

import pytest

from service.errors import AccessDenied, CheckpointNotFound, ObjectChanged
from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache
from service.storage.location import parse_location
from service.storage.objects import read_range
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
    with pytest.raises(CheckpointNotFound, match=r"/nothing: no such folder.*gs://bucket/prefix"):
        opened(model / "nothing").list()
    file = model / "data" / "0"
    with pytest.raises(CheckpointNotFound, match=f"{file}: this is a file"):
        opened(file).list()
    file.unlink()
    with pytest.raises(CheckpointNotFound, match=f"{file.parent}: the folder is empty"):
        opened(file.parent).list()


def test_a_file_that_vanished_is_a_clear_error(model: Path):
    source = opened(model)
    objects = source.list()
    (model / "empty").unlink()
    with pytest.raises(ObjectChanged):
        source.read(objects[-1])


def test_linked_folders_are_followed_and_hidden_ones_left_out(model: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1").write_bytes(b"12")
    (model / "linked").symlink_to(tmp_path / "elsewhere")
    (model / "COMPLETE.json").write_text("the cache's own")
    (model / ".hidden").write_text("x")
    (model / "broken").symlink_to(tmp_path / "nothing")
    objects = opened(model).list()
    assert [info.name for info in objects] == ["config.json", "data/0", "empty", "linked/1"]
    assert [info.generation for info in objects] == [(model / info.name).stat().st_mtime_ns for info in objects]


def test_local_files_are_opened_where_they_lie(model: Path):
    source, progress = opened(model), Progress()
    objects = source.list()
    with source.open_files(objects, objects[1:2], cache=None, progress=progress) as files:
        [file] = files.files
        assert read_range(file.source, file.info, 0, 3, files.budget) == b"123"
        assert (file.copy_to, file.source.uri) == (None, str(model))
    assert progress.bytes_total == 3


@pytest.mark.parametrize(("error", "kind"), [(FileNotFoundError, ObjectChanged), (PermissionError, AccessDenied)])
def test_a_file_that_cannot_be_read_is_named(model: Path, monkeypatch: pytest.MonkeyPatch, error, kind):
    def fail(path: Path) -> None:
        raise error

    source = opened(model)
    objects = source.list()
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(kind, match="data/0") as caught:
        source.read(objects[1])
    assert caught.value.uri == str(model)


def test_a_folder_that_may_not_be_read_is_named(model: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: object) -> None:
        raise PermissionError(13, "denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(AccessDenied, match=f"{model} may not be read by this user") as caught:
        opened(model).list()
    assert caught.value.uri == str(model)
