"""Record the test that proves each field of a request as docs/reference/field_tests.json, by running the API's tests.

    python -m scripts.record_fields

Of the tests that send a field, one that has it served comes before one that has it refused; then the one is kept that
is in the route's own files, then the one whose name has most words of the field's, then the one that sends the fewest
fields. Each such test checks that it still sends the field (tests/api/conftest.py).
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scripts.support_table import PROOFS, ROUTES, is_refusal, served_fields

ROOT = Path(__file__).parents[1]
VARIABLE = "LEVSERVE_RECORD_FIELDS"  # names the folder into which tests write what they sent
# In the names of the files that try a body's route.
FILES = {
    "ChatCompletionRequest": "test_chat|structured|test_tools|thinking|vllm|rendering",
    "CompletionRequest": "completions",
    "ResponsesRequest": "response",
    "MessagesRequest": "messages",
    "CountTokensRequest": "messages",
    "AudioRequest": "audio|hearing",
    "FileFields": "files",
    "FileQuery": "files",
    "BatchRequest": "batch",
    "BatchQuery": "batch",
    "EmbeddingsRequest": "embeddings",
}


def main() -> int:
    """Run the tests and write the file; return the exit code of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["-q", "-p", "no:cacheprovider", "-n", "2", "tests/api", *sys.argv[1:]]
        command = ["env", f"{VARIABLE}={folder}", sys.executable, "-m", "pytest", *options]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        lines = [line for file in Path(folder).iterdir() for line in file.read_text().splitlines()]
    PROOFS.write_text(json.dumps(_proofs(map(json.loads, lines)), indent=1, sort_keys=True) + "\n")
    return code


def _proofs(records: Iterable[tuple[str, str, list[str]]]) -> dict[str, dict[str, str]]:
    """Return the best test of each field, by the name of the body.

    Args:
        records: the id of a test, the name of a body, and the fields that it sent in such bodies.
    """
    served = {route.body.__name__: served_fields(route) for route in ROUTES}
    best: dict[tuple[str, str], tuple[object, ...]] = {}
    for test, body, fields in records:
        path, _, function = test.partition("::")
        words = set(re.findall("[a-z]+", function.partition("[")[0]))
        is_own = re.search(FILES.get(body, "-"), path) is not None
        for field in served.get(body, set()) & set(fields):
            stems = {word.rstrip("s") for word in field.split("_")}
            num_common = len(stems & {word.rstrip("s") for word in words})
            rank = (is_refusal(test), not is_own, -num_common / len(stems), len(fields), test)
            if (body, field) not in best or rank < best[body, field]:
                best[body, field] = rank
    found: dict[str, dict[str, str]] = {}
    for (body, field), rank in best.items():
        found.setdefault(body, {})[field] = str(rank[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
