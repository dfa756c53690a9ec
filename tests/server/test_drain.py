"""The end of a process, as clients see it through a socket: answers are whole, or end with the reason."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.api.http.access_log import AccessLog
from service.api.http.call import Deadline
from service.api.http.errors import ErrorAnswers
from service.api.http.sse import EventStream
from service.observability.metrics import Metrics
from service.server.connection import Connection
from service.server.drain import drain
from tests.process import STOP_TIMEOUT_S
from tests.sockets import body_from, connected, read_to_end, refusal, served, wait_until

LARGE = b"x" * (12 * 1024 * 1024)
GET = b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n"


class Drained:
    """What answers: `/whole` and `/stream` when `answer` is set, `/large` at once, others once their body is there."""

    def __init__(self):
        self.answer = asyncio.Event()
        self.error = None
        self.is_draining = False

    def begin_drain(self):
        self.is_draining = True

    async def stop_batches(self):
        pass

    def cut(self, make_error):
        self.error = make_error()
        self.answer.set()

    async def result(self):
        await self.answer.wait()
        if self.error is not None:
            raise self.error
        return {"tokens": 1}

    async def documents(self):
        yield [{"tokens": 0}]
        yield [await self.result()]

    async def __call__(self, scope, receive, send):
        path = scope["path"]
        if path == "/stream":
            stream = EventStream(self.documents(), sequences=contextlib.nullcontext(), deadline=Deadline(60))
            await stream(scope, receive, send)
            return
        if path == "/whole":
            body = json.dumps(await self.result()).encode()
        elif path == "/large":
            body = LARGE
        else:
            body = (await receive())["body"]
            body += (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def service():
    return Drained()


@pytest.fixture
def server(service):
    with served(AccessLog(ErrorAnswers(service), metrics=Metrics()), Connection) as server:
        yield server


def begin_drain(server, service, seconds):
    """Drain on the server's event loop; returns once new requests would be refused."""
    draining = asyncio.run_coroutine_threadsafe(drain(server.server_state, service, seconds), server.loop)
    wait_until(lambda: service.is_draining)
    return draining


def test_an_answer_that_is_under_way_is_given(server, service):
    with connected(server) as whole, connected(server) as stream, connected(server) as idle:
        whole.sendall(GET % b"/whole")
        stream.sendall(GET % b"/stream")
        wait_until(lambda: len(server.server_state.tasks) == 2)
        draining = begin_drain(server, service, 20)
        server.loop.call_soon_threadsafe(service.answer.set)
        assert json.loads(body_from(whole)) == {"tokens": 1}
        assert read_to_end(stream).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        draining.result(20)
        assert service.error is None
        assert read_to_end(idle) == b""


def test_the_last_byte_has_the_whole_time(server, service):
    with connected(server, so_rcvbuf=65536) as client:
        client.sendall(GET % b"/large")
        wait_until(lambda: server.server_state.total_requests == 1)
        draining = begin_drain(server, service, 20)
        assert len(body_from(client)) == len(LARGE)
        draining.result(20)


def test_what_outlives_the_time_is_told_that_the_process_ends(server, service, caplog):
    with connected(server) as whole, connected(server) as stream, connected(server) as body:
        whole.sendall(GET % b"/whole")
        stream.sendall(GET % b"/stream")
        body.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf")
        wait_until(lambda: len(server.server_state.tasks) == 3)
        begin_drain(server, service, 0.1).result(20)
        for client in (whole, body):
            status, error = refusal(read_to_end(client))
            assert (status, error["code"]) == (503, "shutting_down")
        last = read_to_end(stream).decode().split("data: ")[-1].splitlines()[0]
        assert json.loads(last)["error"]["code"] == "shutting_down"
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_client_that_does_not_read_does_not_hold_the_end(server, service):
    with connected(server, so_rcvbuf=4096) as client:
        client.sendall(GET % b"/large")
        wait_until(lambda: server.server_state.connections)
        begin_drain(server, service, 0.1).result(20)
        wait_until(lambda: not server.server_state.connections)


def handles_sigterm(pid):
    """Return whether a process has a handler for signal 15, without which the first one of a container ignores it."""
    [caught] = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line]
    return bool(int(caught, 16) & 1 << 14)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(("command", "code"), [("serve", 0), ("batch", 143), ("prewarm", 143)])
def test_sigterm_ends_every_command_before_it_has_begun(command, code, tmp_path):
    arguments = [command, *(["in.jsonl", "out.jsonl"] if command == "batch" else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "service", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ["PYTHONPATH"]])},
        cwd=tmp_path,
    )  # fmt: skip
    wait_until(lambda: handles_sigterm(process.pid))
    process.terminate()
    assert process.wait(STOP_TIMEOUT_S) == code


def test_a_device_that_hangs_ends_the_process_even_if_nothing_else_does():
    code = (
        "import time; from service.server.watchdog import watch\n"
        "watch(lambda: 9.0, limit_s=8.0, on_hang=lambda: print('told', flush=True)); time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "told\n")
