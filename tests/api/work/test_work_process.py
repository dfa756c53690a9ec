"""The process for long bodies: what it returns, what ends it, and that the next call finds another one."""

import asyncio
import contextlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from service.api.work import work_process
from service.api.work.text_threads import TextThreads
from service.api.work.work_process import WorkProcess
from service.errors import BodyTooLaborious, ContextLengthExceeded
from service.start.niceness import LONG_TEXT_NICENESS, yield_to_steps
from tests.api.work.process_functions import allocate, crash, divide_by_zero, echo, refuse, spin, state, write
from tests.sockets import wait_until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
ENDLESS_S = 60.0


def ignore(seconds):
    pass


@pytest.fixture
async def process():
    nicer = partial(yield_to_steps, LONG_TEXT_NICENESS)
    made = WorkProcess(TextThreads(nicer).run_in_own_thread, max_body_bytes=1024)
    yield made
    made.end()


def is_running(pid):
    """Return whether a process exists that has not ended, whether or not somebody has asked how."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def until(is_so):
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_nothing_is_started_before_the_first_call(process):
    assert process.pid is None
    assert await process.call(ignore, echo, "a") == "a"
    assert process.pid is not None


async def test_calls_share_a_process_without_secrets_that_yields_to_steps(process, monkeypatch):
    monkeypatch.setenv("API_KEY", "sk-canary")
    first, second = [await process.call(ignore, state, "API_KEY") for _ in range(2)]
    assert first == second == (process.pid, LONG_TEXT_NICENESS, None)
    assert os.getpriority(os.PRIO_PROCESS, 0) < LONG_TEXT_NICENESS


async def test_large_results_are_whole(process):
    content = os.urandom(3_000_000)
    assert await process.call(ignore, echo, content) == content


async def test_errors_of_requests_are_raised_here_as_they_were_there(process):
    with pytest.raises(ContextLengthExceeded) as raised:
        await process.call(ignore, refuse)
    error = raised.value
    assert (error.param, error.prompt_tokens, error.limit_tokens) == ("prompt", 9, 5)


async def test_a_fault_names_its_place_and_quotes_nothing(process):
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError[\s\S]*divide_by_zero") as raised:
        await process.call(ignore, divide_by_zero, "canary")
    assert "canary" not in str(raised.value)
    assert await process.call(ignore, echo, "next") == "next"


async def test_the_work_is_noted_in_seconds_of_a_processor(process):
    noted = []
    await process.call(noted.append, spin, 0.05)
    assert 0.05 <= noted[0] < ENDLESS_S


async def test_the_next_call_finds_another_process_after_a_crash(process):
    with pytest.raises(BodyTooLaborious, match="too long or too much memory"):
        await process.call(ignore, crash)
    assert await process.call(ignore, echo, "next") == "next"


async def test_memory_is_bounded_by_the_longest_body(monkeypatch):
    monkeypatch.setattr(work_process, "BASE_BYTES", 400 * 2**20)
    process = WorkProcess(TextThreads().run_in_own_thread, max_body_bytes=1024)
    with pytest.raises(BodyTooLaborious, match="too much memory"):
        await process.call(ignore, allocate, 500 * 2**20)
    longer = WorkProcess(TextThreads().run_in_own_thread, max_body_bytes=2**20)
    assert await longer.call(ignore, allocate, 500 * 2**20) == 500 * 2**20
    assert await process.call(ignore, echo, "next") == "next"
    process.end()
    longer.end()


async def test_a_call_that_takes_too_much_of_a_processor_is_ended(process, monkeypatch):
    monkeypatch.setattr(work_process, "PROCESSOR_S", 3.0)
    with pytest.raises(BodyTooLaborious, match="too long"):
        await process.call(ignore, spin, ENDLESS_S)
    assert await process.call(ignore, echo, "next") == "next"


async def test_a_call_that_takes_too_long_is_ended(process, monkeypatch):
    await process.call(ignore, echo, "a")
    pid = process.pid
    monkeypatch.setattr(work_process, "WALL_S", 0.1)
    with pytest.raises(BodyTooLaborious, match="too long"):
        await process.call(ignore, spin, ENDLESS_S)
    assert not is_running(pid)


async def test_a_process_whose_request_is_gone_is_killed_and_the_next_call_finds_another_one(process, monkeypatch):
    monkeypatch.setattr(work_process, "GRACE_S", 0.0)
    await process.call(ignore, echo, "a")
    pid = process.pid
    call = asyncio.ensure_future(process.call(ignore, spin, ENDLESS_S))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not is_running(pid))
    assert await process.call(ignore, echo, "next") == "next"
    assert process.pid != pid


async def test_a_call_that_ends_soon_after_its_request_is_gone_leaves_the_process_to_others(process, monkeypatch):
    monkeypatch.setattr(work_process, "GRACE_S", ENDLESS_S)
    await process.call(ignore, echo, "a")
    pid, noted = process.pid, []
    call = asyncio.ensure_future(process.call(noted.append, spin, 0.05))
    await asyncio.sleep(0.01)
    call.cancel()
    assert await process.call(ignore, echo, "next") == "next"
    assert (process.pid, len(noted)) == (pid, 1)


async def test_a_call_that_is_gone_before_its_turn_is_not_made(process):
    noted = []
    calls = [asyncio.ensure_future(process.call(noted.append, spin, 0.2)) for _ in range(2)]
    await asyncio.sleep(0.05)
    calls[1].cancel()
    await calls[0]
    assert await process.call(ignore, echo, "next") == "next"
    assert len(noted) == 1


async def test_an_idle_process_is_ended(process, monkeypatch):
    monkeypatch.setattr(work_process, "IDLE_S", 0.05)
    await process.call(ignore, echo, "a")
    pid = process.pid
    await until(lambda: process.pid is None)
    assert not is_running(pid)
    assert await process.call(ignore, echo, "next") == "next"


def test_it_ends_when_its_parent_is_gone():
    code = (
        "import asyncio, os\n"
        "from service.api.work.text_threads import TextThreads\n"
        "from service.api.work.work_process import WorkProcess\n"
        "async def main():\n"
        "    process = WorkProcess(TextThreads().run_in_own_thread, max_body_bytes=1)\n"
        "    await process.call(lambda seconds: None, os.getpid)\n"
        "    print(process.pid, flush=True)\n"
        "    os._exit(0)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    wait_until(lambda: not is_running(int(done.stdout)))


async def test_it_writes_no_file(process, tmp_path):
    with pytest.raises((BodyTooLaborious, RuntimeError)):
        await process.call(ignore, write, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b""
