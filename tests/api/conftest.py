import json
import os
from pathlib import Path

import pytest

from tests.api.sent_fields import recorded

ROOT = Path(__file__).parents[2]
PROOFS = json.loads((ROOT / "docs/reference/field_tests.json").read_text())
# Fields by the test that proves them, as pairs of the body's name and the field's.
PROVEN = {
    test: [(body, field) for body, fields in PROOFS.items() for field in fields if fields[field] == test]
    for test in {test for fields in PROOFS.values() for test in fields.values()}
}
RECORDS = os.environ.get("LEVSERVE_RECORD_FIELDS")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def _proven_fields(request):
    """Check that a test sends the fields that it proves, or write down what it sends (scripts/record_fields.py)."""
    test = request.node.nodeid
    if not RECORDS and test not in PROVEN:
        yield
        return
    with recorded() as sent:
        yield
    if RECORDS:
        lines = [json.dumps((test, body, sorted(fields))) + "\n" for body, fields in sent.items()]
        with Path(RECORDS, f"{os.getpid()}.jsonl").open("a") as file:
            file.writelines(lines)
        return
    assert [(body, field) for body, field in PROVEN[test] if field not in sent[body]] == []
