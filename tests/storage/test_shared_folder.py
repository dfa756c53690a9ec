"""Processes that update one object of a folder, and are killed: no update is lost, and nothing is left."""

import os
import subprocess
import sys
import time

import pytest

from service.storage.folder_store import FolderStore

NUM_PROCESSES, NUM_UPDATES = 3, 40


@pytest.mark.slow
def test_updates_of_killed_processes_are_whole_and_none_is_lost(tmp_path):
    arguments = [sys.executable, "-m", "tests.storage.update_process", str(tmp_path)]
    processes = [
        subprocess.Popen([*arguments, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(NUM_PROCESSES)
    ]
    told = []
    for process in processes:  # each is killed while it writes, and the others go on
        told += [int(process.stdout.readline()) for _ in range(NUM_UPDATES)]
        process.kill()
        told += [int(line) for line in process.stdout.read().split("\n")[:-1]]
        process.wait()
        process.stdout.close()
    store = FolderStore(tmp_path)
    lines = store.read("a/count").split()
    assert len(told) == len(set(told))
    assert len(lines) - NUM_PROCESSES <= len(told) <= len(lines)  # a kill may come before the number is printed
    assert max(told) <= len(lines)
    store.update("a/count", lambda present: present + b"end\n")
    long_ago = time.time() - 7200
    for part in tmp_path.rglob("*.part"):
        os.utime(part, (long_ago, long_ago))
    store.sweep()
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == {
        "a/count",
        ".lock",
    }
