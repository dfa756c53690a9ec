"""Ten thousand small objects, as an array store writes them, are pulled and found again."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stored import REPOSITORY

TIMEOUT_S = 60


@pytest.mark.slow
def test_ten_thousand_objects_are_pulled_and_found_again_in_bounded_time(tmp_path: Path):
    command = [sys.executable, "-m", "tests.storage.many_objects_process", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=TIMEOUT_S)
