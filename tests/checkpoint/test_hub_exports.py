"""Exports of a run in a repository of the Hub, and `levserve check` against the Hub and a bucket."""

import http.server
import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.checkpoint.discover import LocatedCheckpoint, locate
from service.errors import CheckpointNotFound
from service.observability.progress import Progress
from service.offline.check import check
from service.settings import Settings
from service.storage.cache.cache import CheckpointCache
from service.storage.location import parse_location
from service.storage.source import open_source
from tests.gcs import GcsBucket
from tests.offline.test_check import rows
from tests.served import DEMO
from tests.storage.test_hub import COMMIT, connect


class FolderHub(http.server.BaseHTTPRequestHandler):
    """The Hub with one public repository, whose files lie in a folder. Source: https://huggingface.co/docs/hub/api."""

    protocol_version = "HTTP/1.1"
    folder: Path
    num_bytes = 0  # of weights that were sent

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/run"):
            files = [file for file in sorted(self.folder.rglob("*")) if file.is_file()]
            siblings = [
                {"rfilename": str(file.relative_to(self.folder)), "size": file.stat().st_size} for file in files
            ]
            return self.answer(200, json.dumps({"id": "org/run", "sha": COMMIT, "siblings": siblings}).encode())
        file = self.folder / path.removeprefix(f"/org/run/resolve/{COMMIT}/")
        if not path.startswith("/org/run/resolve/") or not file.is_file():
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        data, headers = file.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{path}"', "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            return self.answer(200, data, headers)
        part = data[int(asked[1]) : int(asked[2]) + 1]
        return self.answer(206, part, {**headers, "Content-Range": f"bytes {asked[1]}-{asked[2]}/{len(data)}"})

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            FolderHub.num_bytes += len(body) if self.path.endswith(".safetensors") else 0
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def export(folder: Path) -> Path:
    """Write the demo model as a run exports it."""
    folder.mkdir(parents=True)
    for file in DEMO.iterdir():
        if file.suffix in (".json", ".safetensors", ".jinja"):
            shutil.copy(file, folder / file.name)
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository with the exports of three steps, the newest of which is not whole."""
    folder = tmp_path / "repository"
    for step in (900, 1000):
        export(folder / "hf" / f"step-{step}")
    (folder / "hf" / "step-1100").mkdir()
    shutil.copy(DEMO / "config.json", folder / "hf" / "step-1100" / "config.json")
    monkeypatch.setattr(FolderHub, "folder", folder, raising=False)
    monkeypatch.setattr(FolderHub, "num_bytes", 0)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FolderHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connect(monkeypatch, f"http://127.0.0.1:{server.server_port}")
        yield folder
        server.shutdown()


def located(uri: str, root: Path) -> LocatedCheckpoint:
    return locate(uri, lambda location: open_source(location, cache_root=root))


def test_the_newest_export_of_a_folder_on_the_hub_is_served(run: Path, tmp_path: Path):
    found = located("hf://org/run/hf", tmp_path)
    assert found.uri == "hf://org/run/hf/step-1000"
    cache = CheckpointCache(tmp_path / "kept", max_checkpoints=1)
    pulled = found.weights.source.pull(found.weights.objects, cache, Progress())
    for name in found.weight_files:
        assert (pulled.path / name).read_bytes() == (DEMO / name).read_bytes()
    shutil.move(run / "hf" / "step-900", run / "step-900")
    shutil.rmtree(run / "hf")
    assert located("hf://org/run@main", tmp_path / "other").uri == "hf://org/run/step-900@main"


def test_a_folder_of_a_repository_is_an_address(run: Path, tmp_path: Path):
    assert located("hf://org/run/hf/step-900", tmp_path).weight_files == located(str(DEMO), tmp_path).weight_files
    with pytest.raises(CheckpointNotFound, match="the repository has no folder 'none/'"):
        located("hf://org/run/none", tmp_path)


def test_check_reads_headers_alone_of_the_hub(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert check("hf://org/run/hf", Settings(local_model_cache=str(tmp_path / "cache"))) == 0
    table = rows(capsys)
    assert table["result"] == "served"
    assert table["tensors"] == "38: 38 BF16"
    assert 0 < FolderHub.num_bytes < 1_000_000  # of 8 MB


def test_check_reads_headers_alone_of_a_bucket(
    tmp_path: Path, gcs_bucket: GcsBucket, capsys: pytest.CaptureFixture[str]
):
    gcs_bucket.upload_directory(export(tmp_path / "demo"), "checked")
    settings = Settings(local_model_cache=str(tmp_path / "cache"), storage_emulator_host=gcs_bucket.endpoint)
    assert check(gcs_bucket.uri("checked"), settings) == 0
    table = rows(capsys)
    assert table["result"] == "served"
    assert table["tensors"] == "38: 38 BF16"
    assert table["tokenizer"].startswith("3,072 tokens, with a chat template")


def test_addresses_of_the_hub():
    assert parse_location("hf://org/name/a/b-1@v1").uri == "hf://org/name/a/b-1@v1"
    assert parse_location("hf://org/name").uri == "hf://org/name"
