"""Messages of LiteLLM, sent back as history in every form that it has."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.contract.installation import python_of
from tests.contract.scripted_model import MODEL
from tests.contract.scripts import KEY, WEATHER

PROGRAM = Path(__file__).parent / "litellm_history" / "program.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_litellms_messages_are_taken_back_in_every_form(scripted_service):
    given = {
        "baseURL": f"{scripted_service.url}/v1",
        "apiKey": KEY,
        "model": MODEL,
        "question": "How is it in Ulm? (script weather)",
        "tool": WEATHER,
        "arrived": '{"degrees": 7}',
    }
    command = [python_of(PROGRAM), str(PROGRAM), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    tokens = json.loads(done.stdout.splitlines()[-1])
    for provider in ("openai", "hosted_vllm"):  # they write the schemas of tools differently
        found = {form: number for form, number in tokens.items() if form.startswith(provider)}
        assert len(found) == 10
        assert len(set(found.values())) == 1, found
