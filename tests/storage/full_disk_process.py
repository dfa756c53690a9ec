"""Fill a disk at each of the writes of one scenario in turn: `SCENARIO FOLDER [ENDPOINT BUCKET]`; prints a JSON object.

The process must run with the library of `full_disk.c`, and FULL_DISK_FOLDER be FOLDER. Each scenario is run with room
for no write, for one, for two and so on, until it fits; then there is room again, and what is there must be whole.
"""

import asyncio
import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from service.bundles.folder import BundleFolder
from service.errors import CheckpointError
from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache
from service.storage.gcs.read import GcsSource
from service.storage.location import GcsLocation

room_for = ctypes.CDLL(None).full_disk_after
room_for.argtypes, room_for.restype = [ctypes.c_long], ctypes.c_long
MAX_WRITES = 400


def outcomes(scenario: Callable[[Path], Iterator[bool]], root: Path) -> dict[str, int]:
    """Run a scenario for each number of writes, and count how it went.

    Args:
        scenario: a generator that tries, yields whether it was refused, and then, with room again, checks what is left.
        root: the folder that fills up.
    """
    for number in range(MAX_WRITES):
        folder = root / str(number)
        folder.mkdir(parents=True)
        running = scenario(folder)
        room_for(number)
        is_refused = next(running)
        num_writes = room_for(-1)
        for _ in running:
            pass
        assert not [*folder.rglob("*.part")], f"write {number} left a part"
        if num_writes <= number:
            assert not is_refused
            return {"writes": number}
    raise AssertionError(f"more than {MAX_WRITES} writes")


def pull(folder: Path, endpoint: str, bucket: str) -> Iterator[bool]:
    """Pull a checkpoint into the cache."""
    from tests.stored import FILES, contents, quick_limits

    def pulled() -> dict[str, bytes]:
        with GcsSource(GcsLocation(bucket, "model"), emulator_host=endpoint, limits=quick_limits()) as source:
            found = source.pull(source.list(), CheckpointCache(folder, max_checkpoints=2), Progress())
            try:
                return contents(found.path)
            finally:
                found.release()

    try:
        assert pulled() == FILES
        yield False
    except CheckpointError:
        for record in folder.glob("checkpoints/*/COMPLETE.json"):
            assert contents(record.parent) == FILES
        yield True
    assert pulled() == FILES


def bundle(folder: Path) -> Iterator[bool]:
    """Write a bundle, of which some executables were written one by one."""
    files = {f"{index}-0.executable": bytes([index]) * 50_000 for index in range(3)} | {"manifest.json": b"{}"}
    place = BundleFolder(folder)
    try:
        place.partial("key").add("one", files["1-0.executable"], 1.0)
        place.write("key", files)
        yield False
    except OSError:
        assert not place.holds("key") or {name: place.read("key", name) for name in files} == files
        assert all(data == files["1-0.executable"] for _, data in place.partial("key").read().values())
        yield True
    place.write("key", files)
    assert {name: place.read("key", name) for name in files} == files


def response(folder: Path) -> Iterator[bool]:
    """Make a response in the background, and delete it."""
    from service.storage.folder_store import FolderStore
    from tests.api.scripted_engine import MODEL
    from tests.api.test_stored_responses import HELLO, RememberingService, script_of

    service = RememberingService(FolderStore(folder))
    service.engine.script = script_of(HELLO)

    async def answers(*requests: tuple[str, str, dict[str, Any] | None]) -> list[tuple[int, dict[str, Any]]]:
        async with service.client() as client:
            found = [await client.request(method, path, json=body) for method, path, body in requests]
            while service.responses.live:
                await asyncio.sleep(0.001)
            return [(answer.status_code, answer.json()) for answer in found]

    [(status, made)] = asyncio.run(answers(("POST", "/v1/responses", {"model": MODEL, "input": "hi"})))
    assert status == 200
    deleted = 0
    if made["store"]:
        [(deleted, _)] = asyncio.run(answers(("DELETE", f"/v1/responses/{made['id']}", None)))
        assert deleted in (200, 503)
    yield deleted != 200
    [(status, kept)] = asyncio.run(answers(("GET", f"/v1/responses/{made['id']}", None)))
    if deleted == 200:
        assert status == 404
    elif made["store"] and status != 404:  # as it is if the last of its writes, that of the folder, fails
        assert (status, kept) == (200, made)
        [(status, _)] = asyncio.run(answers(("DELETE", f"/v1/responses/{made['id']}", None)))
        assert status == 200


def batch(folder: Path) -> Iterator[bool]:
    """Upload a file, run the batch that it describes, and delete its results."""
    from tests.api.batch.running import jsonl, request_line, running
    from tests.api.test_stored_responses import HELLO, script_of

    names = ["a", "b", "c"]
    script = script_of(HELLO)

    async def begin() -> tuple[str | None, int]:
        async with running(folder, script) as service:
            uploaded = await service.upload(jsonl([request_line(name) for name in names]))
            if uploaded.status_code != 200:
                return None, uploaded.status_code
            body = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/chat/completions"}
            created = await service.post("/v1/batches", body | {"completion_window": "24h"})
            if created.status_code != 200:
                return None, created.status_code
            id_ = created.json()["id"]
            for _ in range(60):
                found = await service.get(f"/v1/batches/{id_}")
                if found.status_code == 200 and found.json()["status"] == "completed":
                    return id_, 200
                await asyncio.sleep(0.01)
            return id_, 503

    async def end(id_: str | None) -> None:
        async with running(folder, script) as service:
            for batch in (await service.get("/v1/batches")).json()["data"] if id_ is None else [{"id": id_}]:
                done = await service.until(batch["id"], "completed")
                assert (await service.lines_of(done["output_file_id"])).keys() == set(names)
                assert done["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
            for file in (await service.get("/v1/files")).json()["data"]:
                content = await service.get(f"/v1/files/{file['id']}/content")
                assert (content.status_code, len(content.content)) == (200, file["bytes"])

    id_, status = asyncio.run(begin())
    assert status in (200, 503), status
    yield status != 200
    asyncio.run(end(id_))


def upload(folder: Path) -> Iterator[bool]:
    """Upload a file that takes a temporary one."""
    import tempfile

    from tests.api.batch.running import running

    content = bytes(3_000_000)

    async def status() -> int:
        async with running(folder / "batches", max_bytes=10**8, max_file_bytes=10**7) as service:
            answer = await service.upload(content)
            for file in (await service.get("/v1/files")).json()["data"]:
                assert (await service.get(f"/v1/files/{file['id']}/content")).content == content
            return answer.status_code

    tempfile.tempdir = str(folder)
    answered = asyncio.run(status())
    assert answered in (200, 503), answered
    yield answered != 200
    assert not [*folder.glob("tmp*")]


def main() -> None:
    name, folder, *arguments = sys.argv[1:]
    scenarios: dict[str, Callable[..., Iterator[bool]]] = {
        "pull": pull,
        "bundle": bundle,
        "response": response,
        "batch": batch,
        "upload": upload,
    }
    chosen: Any = scenarios[name]
    print(json.dumps(outcomes(lambda each: chosen(each, *arguments), Path(folder))))


if __name__ == "__main__":
    main()
