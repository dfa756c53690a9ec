"""The Hub's client against a small Hub of our own: pinned to a commit, and clear errors."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from huggingface_hub import constants

from service import errors
from service.errors import CheckpointError, SettingsError, TransferFailed
from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache, PulledCheckpoint
from service.storage.hub import HubSource
from service.storage.location import parse_location
from service.storage.objects import read_range
from service.storage.source import open_source
from tests.stored import REPOSITORY, contents

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b'{"a": 1}', "data/weights.safetensors": bytes(300_000), "README.md": b"not needed"}
WEIGHTS = "data/weights.safetensors"
WANTED = {name: data for name, data in FILES.items() if name != "README.md"}
NUM_OF_WIDE = 60
TIMEOUT_S = 30


class SmallHub(http.server.BaseHTTPRequestHandler):
    """One public repository, one gated, and nothing else. Source: https://huggingface.co/docs/hub/api."""

    protocol_version = "HTTP/1.1"
    paths: ClassVar[list[str]] = []  # what was asked for
    may_go_on = threading.Event()  # cleared: only half of a long body is sent
    may_go_on.set()
    num_corrupt: ClassVar[list[int]] = [0]  # answers with the weights that have a wrong byte

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.paths.append(path)
        if path == "/api/models/org/name" or path.endswith(("/name/revision/main", "/name/revision/refs%2Fpr%2F1")):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            lfs = {
                "size": len(FILES[WEIGHTS]),
                "sha256": hashlib.sha256(FILES[WEIGHTS]).hexdigest(),
                "pointerSize": 134,
            }
            siblings[list(FILES).index(WEIGHTS)]["lfs"] = lfs
            return self.answer(200, json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode())
        if path.startswith("/api/models/org/name/revision/"):
            return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if path.startswith("/api/models/org/gated"):
            return self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        if path.startswith("/api/models/org/forbidden"):
            return self.answer(403, b"")
        if path.startswith("/api/models/org/broken"):
            return self.answer(400, b"")
        for name, files in (("empty", []), ("hostile", [{"rfilename": "../evil", "size": 1}])):
            if path.startswith(f"/api/models/org/{name}"):
                return self.answer(200, json.dumps({"id": name, "sha": COMMIT, "siblings": files}).encode())
        if path.startswith("/api/models/org/wide"):
            siblings = [{"rfilename": f"{number}.json", "size": 2} for number in range(NUM_OF_WIDE)]
            return self.answer(200, json.dumps({"id": "wide", "sha": COMMIT, "siblings": siblings}).encode())
        prefix = f"/org/name/resolve/{COMMIT}/"
        data = FILES.get(path.removeprefix(prefix)) if path.startswith(prefix) else None
        if data is None:
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if path.endswith(WEIGHTS) and self.command == "GET" and self.num_corrupt[0] > 0:
            self.num_corrupt[0] -= 1
            data = b"\1" + data[1:]
        return self.answer(200, data, {"X-Repo-Commit": COMMIT, "ETag": f'"{len(data)}"'})

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2])
            if len(body) > 100_000:
                self.may_go_on.wait(TIMEOUT_S)
            self.wfile.write(body[len(body) // 2 :])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SmallHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def hub(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> type[SmallHub]:
    """The Hub that this process's client reads."""
    connect(monkeypatch, endpoint)
    SmallHub.paths.clear()
    return SmallHub


def connect(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    # The client reads its variables when it is imported.
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


def opened(uri: str, root: Path) -> HubSource:
    source = open_source(parse_location(uri), cache_root=root)
    assert isinstance(source, HubSource)
    return source


def pull_wanted(source: HubSource, root: Path, progress: Progress | None = None) -> PulledCheckpoint:
    objects = [info for info in source.list() if info.name in WANTED]
    return source.pull(objects, CheckpointCache(root, max_checkpoints=1), progress or Progress())


def pull(uri: str, root: Path, endpoint: str) -> dict:
    home = {"HF_HOME": str(root / "home"), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "tests.storage.hub_process", uri, str(root)]
    done = subprocess.run(command, cwd=REPOSITORY, env=os.environ | home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "%|" not in done.stderr  # a bar of the client's own
    return json.loads(done.stdout.splitlines()[-1])


def test_a_repository_is_pulled_and_then_served_without_the_network(endpoint: str, tmp_path: Path):
    result = pull("hf://org/name", tmp_path, endpoint)
    wanted = {name: len(data) for name, data in FILES.items() if name != "README.md"}
    assert result["files"] == wanted
    assert result["config"] == '{"a": 1}'
    assert result["progress"] == [sum(wanted.values())] * 2
    assert result["path"].startswith(str(tmp_path / "hub"))
    assert result["path"].endswith(COMMIT)

    offline = pull("hf://org/name", tmp_path, "http://127.0.0.1:9")
    assert (offline["files"], offline["path"]) == (wanted, result["path"])
    assert offline["config"] == result["config"]


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        ("hf://org/missing", "CheckpointNotFound", "no such repository, or it is private"),
        ("hf://org/name@nightly", "CheckpointNotFound", "no revision 'nightly'"),
        ("hf://org/gated", "AccessDenied", "is gated"),
        ("hf://org/forbidden", "AccessDenied", "HTTP 403. Set HF_TOKEN"),
        ("hf://org/broken", "TransferFailed", "listing: the Hub returned HTTP 400"),
        ("hf://org/empty", "CheckpointNotFound", "the repository is empty"),
        ("hf://org/hostile", "HostileName", "'../evil' leads to another folder"),
    ],
)
def test_what_the_hub_refuses_is_a_clear_error(hub, tmp_path: Path, uri: str, error: str, message: str):
    with pytest.raises(CheckpointError, match=message) as caught:
        opened(uri, tmp_path).list()
    assert type(caught.value) is getattr(errors, error)
    assert str(caught.value).startswith(f"{uri}: ")
    assert caught.value.uri == uri


def test_a_hub_that_is_not_there_is_named_with_its_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    connect(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(TransferFailed, match=r"the Hub is unreachable \(ConnectError\)") as caught:
        opened("hf://org/name@main", tmp_path).list()
    assert (caught.value.uri, caught.value.name) == ("hf://org/name@main", "listing")


@pytest.mark.parametrize("uri", ["hf://org/name", "hf://org/name@main", "hf://org/name@refs/pr/1"])
def test_what_was_pulled_is_served_when_the_hub_is_gone(hub, tmp_path: Path, monkeypatch, caplog, uri: str):
    pulled = pull_wanted(opened(uri, tmp_path), tmp_path)
    assert contents(pulled.path) == WANTED
    assert {info.name for info in pulled.objects} == set(WANTED)
    connect(monkeypatch, "http://127.0.0.1:9")
    source, progress = opened(uri, tmp_path), Progress()
    objects = source.list()
    assert {info.name for info in objects} == set(WANTED)
    assert "the Hub is unreachable" in caplog.text
    assert caplog.records[-1].folder == str(pulled.path)
    config = next(info for info in objects if info.name == "config.json")
    assert source.read(config) == WANTED["config.json"]
    assert pull_wanted(source, tmp_path).path == pulled.path
    with source.open_files(objects, [config], cache=None, progress=progress) as files:
        [file] = files.files
        assert read_range(file.source, file.info, 0, config.size_bytes, files.budget) == WANTED["config.json"]
    assert progress.bytes_total == config.size_bytes


def test_files_are_read_at_the_commit_of_the_listing_and_opened_once_they_are_pulled(hub, tmp_path: Path):
    source, progress = opened("hf://org/name@main", tmp_path), Progress()
    objects = source.list()
    config = next(info for info in objects if info.name == "config.json")
    assert source.read(config) == WANTED["config.json"]
    wanted = [info for info in objects if info.name in WANTED]
    with source.open_files(wanted, [config], cache=None, progress=progress) as files:
        assert [file.info.name for file in files.files] == ["config.json"]
        [file] = files.files
        assert read_range(file.source, file.info, 0, config.size_bytes, files.budget) == WANTED["config.json"]
    assert progress.bytes_done == progress.bytes_total == sum(map(len, WANTED.values()))
    assert {path.split("/")[4] for path in hub.paths if "/resolve/" in path} == {COMMIT}
    source.close()


def test_bytes_are_counted_as_they_arrive_and_the_client_shows_nothing(hub, tmp_path: Path, monkeypatch, capfd):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
    monkeypatch.setenv("TQDM_POSITION", "-1")  # the client's bars are shown even where there is no terminal
    progress = Progress()
    hub.may_go_on.clear()
    thread = threading.Thread(target=pull_wanted, args=(opened("hf://org/name", tmp_path), tmp_path, progress))
    thread.start()
    try:
        deadline_s = time.monotonic() + TIMEOUT_S / 2
        while progress.bytes_done < 100_000:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert progress.bytes_total == sum(map(len, WANTED.values()))
    finally:
        hub.may_go_on.set()
        thread.join()
    assert progress.bytes_done == progress.bytes_total
    assert not capfd.readouterr().err


def test_a_wrong_byte_is_fetched_again_and_refused_the_second_time(hub, tmp_path: Path):
    hub.num_corrupt[0] = 1
    pulled = pull_wanted(opened("hf://org/name", tmp_path / "once"), tmp_path / "once")
    assert (pulled.path / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    hub.num_corrupt[0] = 2
    for _ in range(2):  # and nothing of it is kept
        with pytest.raises(errors.CorruptObject, match=r"sha256 is .*, the Hub says .*, twice in a row"):
            pull_wanted(opened("hf://org/name", tmp_path / "twice"), tmp_path / "twice")
        hub.num_corrupt[0] = 2
    hub.num_corrupt[0] = 0
    pull_wanted(opened("hf://org/name", tmp_path / "twice"), tmp_path / "twice")


def test_a_cancelled_pull_stops(hub, tmp_path: Path):
    cancelled = threading.Event()
    cancelled.set()
    source = opened("hf://org/name", tmp_path)
    with pytest.raises(TransferFailed, match="was stopped") as caught:
        source.pull(source.list(), CheckpointCache(tmp_path, max_checkpoints=1), Progress(), cancelled)
    assert caught.value.uri == "hf://org/name"
    assert caught.value.name in FILES


def test_after_a_failure_no_more_files_are_asked_for(hub, tmp_path: Path):
    source = opened("hf://org/wide", tmp_path)
    with pytest.raises(CheckpointError):
        source.pull(source.list(), CheckpointCache(tmp_path, max_checkpoints=1), Progress())
    assert len({path for path in hub.paths if "/resolve/" in path}) < NUM_OF_WIDE


def test_without_network_or_earlier_start_the_error_says_so(tmp_path: Path):
    source = open_source(parse_location("hf://org/name"), cache_root=tmp_path)
    with pytest.raises(TransferFailed, match="HF_HUB_OFFLINE is set") as caught:
        source.list()
    assert (caught.value.uri, caught.value.name) == ("hf://org/name", "listing")


def test_without_the_client_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SettingsError, match=r"huggingface-hub"):
        open_source(parse_location("hf://org/name"), cache_root=tmp_path)
