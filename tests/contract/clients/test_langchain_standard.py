"""LangChain's own integration tests of a chat model, against the demo model."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.contract.installation import python_of

PROGRAM = Path(__file__).parent / "langchain_standard" / "program.py"
NUM_TESTS, NUM_REQUIRED = 39, 36

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_demo_passes_langchains_tests(demo_service):
    given = {"baseURL": f"{demo_service.url}/v1", "apiKey": "none", "model": "levserve-demo"}
    command = [python_of(PROGRAM), str(PROGRAM), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert len(outcomes["passed"]) + len(outcomes["failed"]) == NUM_TESTS, done.stdout
    assert len(outcomes["passed"]) >= NUM_REQUIRED, json.dumps(outcomes["failed"], indent=2)
