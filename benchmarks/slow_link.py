"""A proxy on this machine that limits the total rate to a server, in bytes per second."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import F_SETPIPE_SZ, fcntl
from subprocess import PIPE, Popen
from urllib.parse import urlsplit

CHUNK_BYTES = 256 * 1024


class _Pace:
    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def wait_for(self, num_bytes: int) -> None:
        with self._lock:
            now_s = time.monotonic()
            self._free_at_s = max(now_s, self._free_at_s) + num_bytes / self._bytes_per_s
            wait_s = self._free_at_s - now_s
        time.sleep(wait_s)


@contextmanager
def slow_link(url: str, bytes_per_s: int) -> Iterator[str]:
    """Run the proxy in its own process and yield its address."""
    port = urlsplit(url).port
    process = Popen([sys.executable, __file__, str(port), str(bytes_per_s)], stdout=PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def _serve(server_port: int, bytes_per_s: int) -> None:
    pace = _Pace(bytes_per_s)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", server_port))
            threading.Thread(target=_pass_on, args=(client, server, None), daemon=True).start()
            threading.Thread(target=_pass_on, args=(server, client, pace), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, pace: _Pace | None) -> None:
    """Pass bytes on through a pipe, which copies none: what is measured shares the processors."""
    end, begin = os.pipe()
    fcntl(begin, F_SETPIPE_SZ, CHUNK_BYTES)
    with suppress(OSError):
        while num_bytes := os.splice(source.fileno(), begin, CHUNK_BYTES):
            if pace is not None:
                pace.wait_for(num_bytes)
            while num_bytes:
                num_bytes -= os.splice(end, sink.fileno(), num_bytes)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
    os.close(end)
    os.close(begin)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
