"""The Hub's client against a small Hub of our own: pinned to a commit, and clear errors."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.errors import SettingsError, TransferFailed
from service.storage.location import parse_location
from service.storage.source import open_source
from tests.stored import REPOSITORY

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b'{"a": 1}', "data/weights.safetensors": bytes(300_000), "README.md": b"not needed"}


class SmallHub(http.server.BaseHTTPRequestHandler):
    """One public repository, one gated, and nothing else. Source: https://huggingface.co/docs/hub/api."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/api/models/org/name", "/api/models/org/name/revision/main"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
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
        prefix = f"/org/name/resolve/{COMMIT}/"
        data = FILES.get(path.removeprefix(prefix)) if path.startswith(prefix) else None
        if data is None:
            return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        return self.answer(200, data, {"X-Repo-Commit": COMMIT, "ETag": f'"{len(data)}"'})

    do_HEAD = do_GET

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SmallHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


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
        ("hf://org/forbidden", "AccessDenied", "HTTP 403: set HF_TOKEN"),
        ("hf://org/broken", "TransferFailed", "listing: the Hub answered HTTP 400"),
        ("hf://org/empty", "CheckpointNotFound", "the repository is empty"),
        ("hf://org/hostile", "HostileName", "'../evil' leads to another folder"),
    ],
)
def test_what_the_hub_refuses_is_a_clear_error(endpoint: str, tmp_path: Path, uri: str, error: str, message: str):
    result = pull(uri, tmp_path, endpoint)
    assert result["error"] == error
    assert message in result["message"]
    assert result["message"].startswith(f"{uri}: ")


def test_a_hub_that_is_not_there_is_named_with_its_failure(tmp_path: Path):
    result = pull("hf://org/name@main", tmp_path, "http://127.0.0.1:9")
    assert result["error"] == "TransferFailed"
    assert "listing: the Hub cannot be reached (" in result["message"]


def test_without_network_or_earlier_start_the_error_says_so(tmp_path: Path):
    source = open_source(parse_location("hf://org/name"), cache_root=tmp_path)
    with pytest.raises(TransferFailed, match="HF_HUB_OFFLINE is set"):
        source.list()


def test_without_the_client_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SettingsError, match=r"huggingface-hub"):
        open_source(parse_location("hf://org/name"), cache_root=tmp_path)
