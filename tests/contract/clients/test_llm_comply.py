"""llm-comply's tests of three interfaces: all but those that show the model a picture, which is refused by name."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.contract.installation import python_of
from tests.contract.scripted_model import MODEL
from tests.contract.scripts import KEY

PROGRAM = Path(__file__).parent / "llm_comply" / "program.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("interface", "num_tests"), [("openai-chat", 9), ("open-responses", 13), ("anthropic", 9)])
def test_an_interface_complies_but_for_pictures(interface, num_tests, scripted_service):
    program = Path(python_of(PROGRAM)).with_name("llm-comply")
    service = ["--base-url", f"{scripted_service.url}/v1", "--api-key", KEY, "--model", MODEL]
    command = [program, "--format", interface, *service, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    results = json.loads(done.stdout)["results"]
    assert len(results) == num_tests
    failed = {result["id"]: result for result in results if result["status"] == "failed"}
    assert [name for name in failed if not name.endswith("image-input")] == [], failed
