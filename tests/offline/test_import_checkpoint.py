"""`levserve import`: from a small Hub into a bucket, verified, and again where it stopped."""

import hashlib
import http.server
import json
import re
import socket
import threading
from collections.abc import Iterator

import pytest
from huggingface_hub import constants

from service.errors import CheckpointNotFound, SettingsError, TransferFailed
from service.offline.hub_file import HubEntry, HubFile
from service.offline.import_checkpoint import import_checkpoint
from service.storage.gcs.store import BucketStore
from service.storage.location import GcsLocation
from tests.gcs import GcsBucket, gcs_bucket, gcs_server

__all__ = ["gcs_bucket", "gcs_server"]  # fixtures

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(range(256)) * 200_000  # 51 MB: several reads, and a resumable upload
FILES = {"config.json": b'{"a": 1}', "model.safetensors": WEIGHTS, "tokenizer.json": b"{}", "pytorch_model.bin": b"no"}
WANTED = {name: data for name, data in FILES.items() if name != "pytorch_model.bin"}


class RangedHub(http.server.BaseHTTPRequestHandler):
    """One repository, with digests and ranges. Source: https://huggingface.co/docs/hub/api."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/name"):
            return self.answer(200, json.dumps(listing(server.commit, server.files)).encode())
        name = path.rpartition("/")[2]
        start, end = map(int, re.findall(r"\d+", self.headers["Range"]))
        server.asked.append(name)
        if server.num_faults > 0 and name == "model.safetensors":
            server.num_faults -= 1
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        body = server.files[name][start : end + 1]
        return self.answer(206, bytes(len(body)) if name == server.corrupt else body)

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def listing(commit: str, files: dict[str, bytes]) -> dict:
    """A repository as the Hub lists it: git's digest of small files, the SHA-256 of large ones."""
    siblings = []
    for name, data in files.items():
        entry = {
            "rfilename": name,
            "size": len(data),
            "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
        }
        if name.endswith(".safetensors"):
            entry["lfs"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
        siblings.append(entry)
    return {"id": "org/name", "sha": commit, "siblings": siblings}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), RangedHub) as server:
        server.commit, server.files, server.asked, server.num_faults, server.corrupt = COMMIT, FILES, [], 0, None
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server
        server.shutdown()


def imported(bucket: GcsBucket) -> dict[str, bytes]:
    """What lies in the folder."""
    store = BucketStore(GcsLocation(bucket.name, "model"), emulator_host=bucket.endpoint)
    return {name: store.read(name) for name in store.list("")}


def run(bucket: GcsBucket, source: str = "hf://org/name", folder: str = "model") -> None:
    assert import_checkpoint(source, bucket.uri(folder), emulator_host=bucket.endpoint) == 0


def test_a_checkpoint_is_copied_without_other_frameworks_weights(hub, gcs_bucket):
    run(gcs_bucket)
    found = imported(gcs_bucket)
    assert json.loads(found.pop("import.json")) == {"source": "hf://org/name", "commit": COMMIT}
    assert found == WANTED


def test_pickled_weights_are_copied_where_there_are_no_others(hub, gcs_bucket):
    hub.files = {name: data for name, data in FILES.items() if name != "model.safetensors"}
    run(gcs_bucket)
    assert imported(gcs_bucket).keys() - {"import.json"} == hub.files.keys()


def test_a_lost_connection_is_read_again(hub, gcs_bucket):
    hub.num_faults = 3
    run(gcs_bucket)
    assert imported(gcs_bucket)["model.safetensors"] == WEIGHTS


def test_an_interrupted_import_goes_on_with_what_is_missing(hub, gcs_bucket):
    hub.num_faults = 8
    with pytest.raises(TransferFailed, match=r"model\.safetensors: the connection was lost.*8 times"):
        run(gcs_bucket)
    assert "config.json" not in imported(gcs_bucket)  # it says that a folder is complete
    hub.asked.clear()
    run(gcs_bucket)
    assert "tokenizer.json" not in hub.asked
    assert imported(gcs_bucket).keys() - {"import.json"} == WANTED.keys()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_corrupt_file_is_not_stored(hub, gcs_bucket, name):
    hub.corrupt = name
    with pytest.raises(TransferFailed, match=f"{name}: its digest is .*, the Hub says"):
        run(gcs_bucket)
    assert name not in imported(gcs_bucket)
    assert "config.json" not in imported(gcs_bucket)


def test_a_folder_of_another_commit_is_left_alone(hub, gcs_bucket):
    run(gcs_bucket)
    hub.commit = "f" * 40
    with pytest.raises(SettingsError, match=f"contains hf://org/name at {COMMIT}, not hf://org/name at f"):
        run(gcs_bucket)
    assert imported(gcs_bucket)["config.json"] == FILES["config.json"]


def test_a_folder_with_other_files_is_left_alone(hub, gcs_bucket):
    gcs_bucket.upload("model/readme", b"mine")
    with pytest.raises(SettingsError, match="contains files of another origin"):
        run(gcs_bucket)


@pytest.mark.parametrize(
    ("source", "folder", "message"),
    [
        ("gs://bucket/x", "model", "is not on the Hub"),
        ("hf://org/name", "", "is not a folder of a bucket"),
    ],
)
def test_an_address_of_another_kind_is_named(hub, gcs_bucket, source, folder, message):
    with pytest.raises(SettingsError, match=message):
        run(gcs_bucket, source, folder)


def test_a_repository_without_a_configuration_is_no_checkpoint(hub, gcs_bucket):
    hub.files = {"tokenizer.json": b"{}"}
    with pytest.raises(CheckpointNotFound, match=r"has no config\.json"):
        run(gcs_bucket)


def test_a_file_without_a_digest_is_refused(hub):
    with pytest.raises(TransferFailed, match="provides no digest"):
        HubFile("hf://org/name", "org/name", COMMIT, HubEntry("x", 1, None, None))


def test_a_part_that_is_read_twice_counts_once(hub):
    data = FILES["config.json"]
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    with HubFile("hf://org/name", "org/name", COMMIT, HubEntry("config.json", len(data), None, blob)) as file:
        buffer = bytearray(4)
        assert file.readinto(memoryview(buffer)) == 4
        file.seek(0)
        assert file.read() == data
