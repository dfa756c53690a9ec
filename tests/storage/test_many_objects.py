"""Ten thousand small objects, as an array store writes them, in bounded time."""

import subprocess
import sys
from pathlib import Path

from tests.stored import REPOSITORY


def test_ten_thousand_objects_are_pulled_and_found_again_in_bounded_time(tmp_path: Path):
    # In a process of its own: checked annotations take ten times as long as the pull.
    command = [sys.executable, "-m", "tests.storage.many_objects_process", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    pulled_s, found_s = map(float, done.stdout.split())
    assert pulled_s < 30
    assert found_s < 5
