"""A worker process: what it returns, what ends it, and that the next call finds another one."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from service.errors import BodyTooLaborious, ContextLengthExceeded, WorkerKilled
from service.worker.process import WorkerCall, WorkerProcess
from tests.processes import is_running
from tests.sockets import wait_until
from tests.worker.process_functions import (
    allocate,
    answer_raw,
    answer_with,
    crash,
    divide_by_zero,
    echo,
    keep,
    kept,
    panic,
    refuse,
    spin,
    state,
    wait,
    write,
)

ROOT = Path(__file__).parents[2]
MEMORY_BYTES = 400 * 2**20
ENDLESS_S = 60.0


def new_process(**changes):
    options = {"failure": BodyTooLaborious, "memory_bytes": MEMORY_BYTES, "processor_s": 3.0} | changes
    return WorkerProcess(**options)


@pytest.fixture
def process():
    made = new_process()
    yield made
    made.end()


def test_nothing_is_started_before_the_first_call(process):
    assert process.pid is None
    assert process.call(echo, b"a").content == b"a"
    assert process.pid is not None


def test_calls_share_a_process_without_secrets(process, monkeypatch):
    monkeypatch.setenv("API_KEY", "sk-canary")
    first, second = [process.call(state, "API_KEY").content for _ in range(2)]
    assert first == second == f"{process.pid} None".encode()
    assert process.num_starts == 1


def test_large_results_are_whole(process):
    content = os.urandom(3_000_000)
    assert process.call(echo, content).content == content


def test_errors_of_requests_are_raised_here_as_they_were_there(process):
    with pytest.raises(ContextLengthExceeded) as raised:
        process.call(refuse)
    error = raised.value
    assert (error.param, error.prompt_tokens, error.max_model_len) == ("prompt", 9, 5)
    assert str(error) == error.message


def test_a_fault_names_its_place_and_quotes_nothing(process):
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError[\s\S]*divide_by_zero") as raised:
        process.call(divide_by_zero, "canary")
    assert "canary" not in str(raised.value)
    assert process.call(echo, b"next").content == b"next"


def test_what_a_call_has_taken_of_a_processor_is_told(process):
    assert 0.05 <= process.call(spin, 0.05).processor_s < ENDLESS_S


def test_the_next_call_finds_another_process_after_a_crash(process):
    with pytest.raises(BodyTooLaborious, match="too long, or crashed"):
        process.call(crash)
    assert process.call(echo, b"next").content == b"next"


def test_memory_is_bounded(process):
    with pytest.raises(BodyTooLaborious, match="too much memory"):
        process.call(allocate, 500 * 2**20)
    larger = new_process(memory_bytes=700 * 2**20)
    assert larger.call(allocate, 500 * 2**20).content == b"x"
    larger.end()
    assert process.call(echo, b"next").content == b"next"


def test_an_answer_that_its_memory_could_not_have_made_is_not_read(process):
    with pytest.raises(BodyTooLaborious, match="crashed"):
        process.call(answer_with, 100 * 2**20)
    assert process.call(echo, b"next").content == b"next"


@pytest.mark.parametrize("answer", [b"\x09" + bytes(8), b"\x00", b"\x01" + bytes(8) + b"not JSON"])
def test_an_answer_that_a_hostile_process_makes_up_ends_the_call_alone(process, answer):
    with pytest.raises((BodyTooLaborious, RuntimeError)):
        process.call(answer_raw, answer)
    assert process.call(echo, b"next").content == b"next"


def test_a_call_that_takes_too_much_of_a_processor_is_ended(process):
    with pytest.raises(BodyTooLaborious, match="too long"):
        process.call(spin, ENDLESS_S)
    assert process.call(echo, b"next").content == b"next"


def test_a_call_that_waits_for_too_long_is_ended():
    process = new_process(processor_s=0.5)
    assert process.call(echo, b"a").content == b"a"
    pid = process.pid
    with pytest.raises(BodyTooLaborious, match=r"took too long\."):
        process.call(wait, ENDLESS_S)
    assert not is_running(pid)
    process.end()


def test_a_process_that_is_ended_fails_its_call_and_the_next_one_finds_another(process):
    pid_of_first = process.call(state, "HOME").content
    failed = []

    def call():
        try:
            process.call(wait, ENDLESS_S)
        except BodyTooLaborious as error:
            failed.append(error)

    calling = threading.Thread(target=call)
    calling.start()
    process.end()
    calling.join()
    assert process.call(state, "HOME").content != pid_of_first


def test_each_new_process_is_first_called_with_what_it_needs():
    process = new_process(first=WorkerCall(keep, (b"first",)))
    process.start()
    assert process.first_answer() == b"kept"
    assert process.call(kept).content == b"first"
    with pytest.raises(BodyTooLaborious):
        process.call(crash)
    assert process.num_starts == 2
    assert process.call(kept).content == b"first"
    process.end()


def test_a_first_call_that_fails_fails_all_others():
    process = new_process(first=WorkerCall(refuse))
    for _ in range(2):
        with pytest.raises(ContextLengthExceeded):
            process.call(echo, b"a")
    process.end()


def test_it_ends_when_its_parent_is_gone():
    code = (
        "import os\n"
        "from service.errors import BodyTooLaborious\n"
        "from service.worker.process import WorkerProcess\n"
        "process = WorkerProcess(failure=BodyTooLaborious, memory_bytes=2**29, processor_s=1.0)\n"
        "process.start()\n"
        "print(process.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    wait_until(lambda: not is_running(int(done.stdout)))


def test_it_writes_no_file(process, tmp_path):
    with pytest.raises((BodyTooLaborious, RuntimeError)):
        process.call(write, str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == b""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_from_outside_is_nobodys_fault(process, number):
    assert process.call(echo, b"a").content == b"a"
    failed = []

    def call():
        try:
            process.call(wait, ENDLESS_S)
        except WorkerKilled as error:
            failed.append(error.status)

    calling = threading.Thread(target=call)
    calling.start()
    os.kill(process.pid, number)
    calling.join()
    assert failed == [503]
    assert process.call(echo, b"next").content == b"next"


def test_a_panic_of_a_native_library_is_a_fault_of_the_call(process):
    with pytest.raises(RuntimeError, match="Panic"):
        process.call(panic)
    assert process.call(echo, b"next").content == b"next"
