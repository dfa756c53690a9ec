"""One contender that loads one checkpoint, in its own process, and prints its times as a line of JSON.

python -m benchmarks.loading_contender CONTENDER ADDRESS PREFIX [--dtype float32] [--workers 8] [--cache FOLDER]

The clock runs from the listing to the last byte: in weights on the device for Levserve, in preallocated memory for the
bare GET, in a file or in memory for the others, whichever is faster. Imports, the start of the interpreter and the
allocation for the bare GET are not timed.

Right before the clock starts, each contender touches and frees twice the memory of the checkpoint. A virtual machine
returns memory that was free for some seconds to its host, and faulting it in again takes half a second per gigabyte,
ten times as long as clearing it. Without this, a figure would depend on how long ago the previous contender ended.
"""

import argparse
import gc
import json
import mmap
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np

BUCKET = "benchmark"

SLICE_BYTES = 16 * 1024 * 1024


def levserve(arguments: argparse.Namespace) -> Callable[[], int]:
    """Levserve: weights verified, joined, cast and put on the device."""
    import jax

    from service.checkpoint.discover import LocatedCheckpoint
    from service.checkpoint.file_set import FileSet
    from service.checkpoint.layout import detect_layout
    from service.checkpoint.limits import LoadLimits
    from service.checkpoint.load import load_checkpoint
    from service.device.mesh import DeviceMesh
    from service.models.decoder import Decoder
    from service.models.registry import read_config
    from service.observability.progress import Progress
    from service.storage.cache.cache import CheckpointCache
    from service.storage.location import parse_location
    from service.storage.retry import TransferLimits
    from service.storage.source import open_source

    uri = arguments.prefix if arguments.address == "file" else f"gs://{BUCKET}/{arguments.prefix}"
    limits = TransferLimits(num_workers=arguments.workers)
    source = open_source(
        parse_location(uri), cache_root=Path("/nonexistent"), emulator_host=arguments.address, limits=limits
    )
    config = json.loads(source.read(next(info for info in source.list() if info.name == "config.json")))
    dtype = np.dtype(jax.numpy.dtype(arguments.dtype))
    specs = Decoder(read_config(uri, config), dtype).weight_specs()
    mesh = DeviceMesh((jax.devices()[0],))
    cache = CheckpointCache(Path(arguments.cache), max_checkpoints=1) if arguments.cache else None

    def run() -> int:
        objects = source.list()
        layout = detect_layout(uri, objects)
        group = FileSet(source, layout.weights)
        located = LocatedCheckpoint(uri, layout, config, group, group)
        loaded = load_checkpoint(
            located,
            specs,
            mesh=mesh,
            limits=LoadLimits(cache, Progress(), 512 * 1024 * 1024),
        )
        jax.block_until_ready(loaded.weights)
        return sum(array.nbytes for array in loaded.weights.values())

    return run


def bare(arguments: argparse.Namespace) -> Callable[[], int]:
    """A lower bound: ranged GETs over plain sockets into memory, without any check."""
    address = urlsplit(arguments.address)
    host, port = str(address.hostname), address.port
    path = f"/storage/v1/b/{BUCKET}/o/{quote(f'{arguments.prefix}/model.safetensors', safe='')}?alt=media"
    memory = memoryview(np.empty(arguments.size_bytes, np.uint8))
    starts = list(range(0, len(memory), SLICE_BYTES))[::-1]

    def work() -> None:
        with socket.create_connection((host, port)) as connection:
            while starts:
                start = starts.pop()
                into = memory[start : start + SLICE_BYTES]
                end = start + len(into) - 1
                request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nRange: bytes={start}-{end}\r\n\r\n"
                connection.sendall(request.encode())
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(4096)
                head, _, rest = head.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 206"), head
                into[: len(rest)] = rest
                done = len(rest)
                while done < len(into):
                    done += connection.recv_into(into[done:])

    def run() -> int:
        threads = [threading.Thread(target=work) for _ in range(arguments.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not starts
        return 0

    return run


def transfer_manager(arguments: argparse.Namespace) -> Callable[[], int]:
    """google-cloud-storage's parallel download into a file, with checksums."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from google.cloud.storage import transfer_manager as manager

    os.environ["STORAGE_EMULATOR_HOST"] = arguments.address
    client = storage.Client(project="benchmark", credentials=AnonymousCredentials())
    folder = tempfile.TemporaryDirectory(dir=arguments.folder)

    def run() -> int:
        with folder as path:
            blob = client.bucket(BUCKET).get_blob(f"{arguments.prefix}/model.safetensors")
            manager.download_chunks_concurrently(
                blob, f"{path}/model", chunk_size=SLICE_BYTES, max_workers=arguments.workers, worker_type=manager.THREAD
            )
            return 0

    return run


def gcsfs(arguments: argparse.Namespace) -> Callable[[], int]:
    """gcsfs: parallel ranges into memory, without checksums."""
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    import gcsfs as library

    files = library.GCSFileSystem(project="benchmark", token="anon", endpoint_url=arguments.address)

    def run() -> int:
        path = f"{BUCKET}/{arguments.prefix}/model.safetensors"
        size = files.info(path)["size"]
        starts = list(range(0, size, SLICE_BYTES))
        ends = [min(start + SLICE_BYTES, size) for start in starts]
        parts = files.cat_ranges([path] * len(starts), starts, ends, batch_size=arguments.workers)
        assert sum(map(len, parts)) == size
        return 0

    return run


def runai(arguments: argparse.Namespace) -> Callable[[], int]:
    """The Run:ai model streamer: tensors in memory."""
    os.environ["STORAGE_EMULATOR_HOST"] = arguments.address
    os.environ["CLOUD_STORAGE_EMULATOR_ENDPOINT"] = arguments.address
    os.environ["RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS"] = "true"
    os.environ["RUNAI_STREAMER_CONCURRENCY"] = str(arguments.workers)
    from runai_model_streamer import SafetensorsStreamer

    def run() -> int:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(f"gs://{BUCKET}/{arguments.prefix}/model.safetensors")
            for _ in streamer.get_tensors():
                pass
        return 0

    return run


def bare_urllib3(arguments: argparse.Namespace) -> Callable[[], int]:
    """The bare GET with urllib3, the HTTP library of most Python clients."""
    import urllib3

    pool = urllib3.PoolManager(maxsize=arguments.workers)
    url = f"{arguments.address}/storage/v1/b/{BUCKET}/o/{quote(f'{arguments.prefix}/model.safetensors', safe='')}"
    memory = memoryview(np.empty(arguments.size_bytes, np.uint8))

    def fetch(start: int) -> None:
        into = memory[start : start + SLICE_BYTES]
        headers = {"Range": f"bytes={start}-{start + len(into) - 1}"}
        response = pool.request("GET", f"{url}?alt=media", headers=headers, preload_content=False)
        done = 0
        while done < len(into):
            data = response.read1(1024 * 1024)
            into[done : done + len(data)] = data
            done += len(data)
        response.release_conn()

    def run() -> int:
        with ThreadPoolExecutor(arguments.workers) as threads:
            list(threads.map(fetch, range(0, len(memory), SLICE_BYTES)))
        return 0

    return run


CONTENDERS = {run.__name__: run for run in (levserve, bare, bare_urllib3, transfer_manager, gcsfs, runai)}


def main() -> None:
    """Run one contender once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("address", help="address of the emulator, or 'file'")
    parser.add_argument("prefix", help="prefix in the bucket; with 'file', a folder")
    parser.add_argument("--size-bytes", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--cache", default="")
    parser.add_argument("--folder", default=None)
    arguments = parser.parse_args()
    run = CONTENDERS[arguments.contender](arguments)
    gc.disable()  # as Levserve does during a start; the same for all contenders
    _touch_and_free(2 * arguments.size_bytes)
    before_bytes = _memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    weights_bytes = run()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    above_bytes = _memory_bytes("VmHWM") - before_bytes - weights_bytes
    print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "peak_rss_above_weights_bytes": above_bytes}))


def _touch_and_free(num_bytes: int) -> None:
    with mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)  # as numpy requests it
        for offset in range(0, num_bytes, mmap.PAGESIZE):
            memory[offset] = 1


def _memory_bytes(field: str) -> int:
    # Source: man 5 proc (VmHWM is the peak of VmRSS; 5 in clear_refs resets it)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


if __name__ == "__main__":
    main()
