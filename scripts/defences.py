"""Take each defence of docs/security.md out, in a copy of the repository, and report how its test fails.

`python -m scripts.defences [T1 ...]`; the exit code is 1 if a test passes without the defence that it is for.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 150
# Without what pyproject.toml adds, which would fail a test before it sees that the defence is gone.
PYTEST_OPTIONS = ("-q", "-x", "--tb=short", "--override-ini=addopts=", "-pno:cacheprovider", "-mslow or not slow")
MARK = re.compile(r"^ *# Defends against (T\d+)\.$", re.MULTILINE)
FAILED = 1  # pytest's exit status if tests have failed
REASON = re.compile(r"^E +(.+)$", re.MULTILINE)
MAX_REASON_CHARS = 100
THREATS = "tests/api/http/test_threats.py::test_"
CONNECTIONS = "tests/server/test_connections.py::test_"
HOSTILE_MODEL = (
    "tests/server/pool/test_hostile_models.py::"
    "test_a_hostile_checkpoint_is_refused_to_those_who_name_it_and_nothing_of_it_is_executed"
)


class Defence(NamedTuple):
    """One defence: the test that is to fail without it, and what stands in the place of the marked statement then.

    The statement follows the comment `# Defends against T1.` of its threat. Of an `if`, its condition is replaced.
    """

    threat: str
    test: str
    without: str | None = None  # None for False in place of a condition, and for no statement


LOCK_FILE = Defence("T29", "tests/deploy/test_packages.py::test_another_file_than_the_locked_one_is_not_installed")
DEFENCES = (
    Defence("T1", f"{CONNECTIONS}heads_have_a_size_and_a_number_of_headers"),
    Defence("T2", f"{THREATS}t2_bodies_are_counted_as_they_arrive_and_not_decompressed"),
    Defence("T3", f"{CONNECTIONS}a_silent_client_is_disconnected"),
    Defence(
        "T4", f"{THREATS}t4_json_bombs", 'document = jiter.from_json(content, allow_inf_nan=False, cache_mode="none")'
    ),
    Defence("T5", f"{THREATS}t5_numbers_out_of_range", "n: int = 1"),
    Defence("T6", f"{THREATS}t6_fan_out"),
    Defence("T7", f"{THREATS}t7_prompts_that_cannot_fit_are_not_encoded"),
    Defence("T8", f"{THREATS}t8_token_ids_that_do_not_exist"),
    Defence("T9", f"{THREATS}t9_schemas_and_patterns"),
    Defence(
        "T10",
        "tests/api/test_untrusted_content.py::test_an_expression_in_the_arguments_of_a_call_is_not_evaluated",
        'calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]; '
        '[eval(found) for found in __import__("re").findall(r"open\\(.*?close\\(\\)", '
        'calls[call["index"]]["function"]["arguments"])]',
    ),
    Defence(
        "T11",
        f"{THREATS}t11_variables_that_the_template_does_not_read_are_not_passed_to_it",
        "values = {name: value for name, value in fields.chat_template_kwargs.items()}",
    ),
    Defence(
        "T12",
        f"{THREATS}t12_a_checkpoints_template_that_reaches_out_ends_its_request_alone",
        "from jinja2 import Environment as ImmutableSandboxedEnvironment",
    ),
    Defence("T13", HOSTILE_MODEL, '__import__(path.rpartition(".")[0], fromlist=["a"])'),
    Defence(
        "T14",
        HOSTILE_MODEL,
        '"auto_map" in values and exec((__import__("pathlib").Path(uri) / "canary.py").read_text()); return values',
    ),
    Defence("T15", HOSTILE_MODEL),
    Defence("T16", HOSTILE_MODEL),
    Defence(
        "T17",
        "tests/bundles/test_poisoned_bundle.py::"
        "test_a_bundle_without_our_signature_is_not_unpickled_and_requests_are_answered",
        "True",
    ),
    Defence("T18", "tests/api/test_untrusted_content.py::test_media_are_neither_fetched_nor_decoded"),
    Defence("T19", "tests/media/test_images.py::test_pixels_are_bounded_before_any_is_decoded"),
    Defence(
        "T20",
        f"{THREATS}t20_nothing_opens_without_a_key",
        'self._keys and scope["type"] == "http" and scope["path"] not in PROBE_PATHS '
        'and not scope["path"].startswith("/V1")',
    ),
    Defence(
        "T21",
        "tests/house/test_security.py::test_secrets_are_compared_in_constant_time",
        "matches = [key for known, key in self._by_digest if digest == known]",
    ),
    Defence(
        "T22",
        f"{THREATS}t22_no_operators_route_without_its_key",
        "return Answer(200, self._service.stats(), {})",
    ),
    Defence(
        "T23",
        "tests/api/generation/test_admission.py::test_two_keys_share_no_salt_whatever_their_requests_say",
        'key = b""',
    ),
    Defence("T24", f"{THREATS}t24_a_client_cannot_write_a_log_line", 'path = request["requestUrl"]'),
    Defence(
        "T25",
        f"{THREATS}t25_a_fault_of_ours_shows_no_detail",
        'return 500, (repr(error), "server_error", None, "internal_error")',
    ),
    Defence("T26", f"{THREATS}t26_pages_of_other_origins"),
    Defence("T27", f"{CONNECTIONS}a_client_that_does_not_read_is_disconnected"),
    Defence("T28", f"{CONNECTIONS}a_request_that_another_server_could_read_otherwise_is_refused"),
    LOCK_FILE,
    Defence(
        "T30",
        "tests/contract/test_canaries.py::test_a_model_that_the_hub_refuses_shows_no_token_to_those_who_name_it",
        "raise AccessDenied(uri, str(error.response.headers)) from error",
    ),
    Defence("T31", "tests/api/test_seeing.py::test_no_text_of_a_request_stands_for_an_image"),
    Defence(
        "T32", "tests/engine/schedule/test_media.py::test_another_medium_or_place_shares_the_pages_before_it_alone"
    ),
    Defence(
        "T33",
        "tests/api/work/test_remote_images.py::test_one_address_that_is_not_public_is_enough_to_refuse",
    ),
    Defence(
        "T34",
        "tests/server/test_adapters.py::test_what_is_no_adapter_of_this_catalogue_is_refused_with_the_reason",
    ),
    Defence(
        "T35",
        "tests/api/http/test_bounds.py::test_the_headers_of_a_part_are_few_and_short",
    ),
    Defence(
        "T36",
        "tests/engine/schedule/test_adapter_slots.py::test_prefixes_are_found_with_the_same_adapter_alone",
        "parts = (salt,)",
    ),
    Defence(
        "T37",
        "tests/checkpoint/adapters/test_read.py::test_a_file_that_is_too_large_is_refused_before_it_is_read",
    ),
    Defence("T38", "tests/api/generation/test_sealed.py::test_what_is_not_signed_as_packed_is_not_opened"),
    Defence(
        "T39",
        "tests/api/http/test_errors.py::test_a_process_that_was_taken_over_sets_no_status_and_no_header",
    ),
    Defence("T40", "tests/api/http/test_bounds.py::test_forms_are_in_utf_8"),
    Defence(
        "T41",
        "tests/api/http/test_bounds.py::test_names_that_clients_choose_make_no_series",
    ),
    Defence("T42", "tests/server/test_hosts.py::test_it_does_not_answer_to_other_names"),
    Defence("T43", "tests/models/test_config.py::test_a_number_of_parts_is_bounded_before_they_are_described"),
    Defence(
        "T44",
        "tests/api/work/test_turns.py::test_a_client_that_waits_behind_many_of_another_comes_next",
        "name = names[0]",
    ),
    Defence(
        "T45",
        "tests/weights/test_safetensors_headers.py::test_headers_have_as_many_tensors_together_as_a_model_may_want",
    ),
    Defence("T46", "tests/api/memory/test_states.py::test_whoever_is_first_what_was_cancelled_or_deleted_stays_so"),
)


def main() -> int:
    """Take out the defences against the threats named, or all; print a line for each and return the exit code."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        shutil.copytree(".", tree, ignore=shutil.ignore_patterns(".git", ".venv", ".tools", ".cache"))
        for defence in DEFENCES:
            if defence.threat in (sys.argv[1:] or [defence.threat]):
                results.append(_result(tree, defence))
                print(f"| {defence.threat} | `{defence.test}` | {results[-1]} |", flush=True)
    return int(not all(result.startswith("fails") for result in results))


def marks() -> dict[str, list[Path]]:
    """Return the files that mark the defence against each threat, relative to the repository."""
    found: dict[str, list[Path]] = {}
    for path in sorted(Path("service").rglob("*.py")):
        for threat in MARK.findall(path.read_text()):
            found.setdefault(threat, []).append(path)
    return found


def without(source: str, defence: Defence) -> str:
    """Return a source without the statement that is marked as a defence, or with its condition replaced."""
    lines = source.splitlines(keepends=True)
    first = 2 + next(n for n, line in enumerate(lines) if (found := MARK.match(line)) and found[1] == defence.threat)
    marked = next(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.stmt) and n.lineno == first)
    part, instead = marked, defence.without or "pass"
    if isinstance(marked, ast.If):
        part, instead = marked.test, f"({defence.without or False})"
    assert part.end_lineno is not None
    assert part.end_col_offset is not None
    before, after = lines[part.lineno - 1].encode()[: part.col_offset], lines[part.end_lineno - 1].encode()
    changed = before.decode() + instead + after[part.end_col_offset :].decode()
    return "".join([*lines[: part.lineno - 1], changed, *lines[part.end_lineno :]])


def _result(tree: Path, defence: Defence) -> str:
    """Return how a test ends without its defence."""
    if defence is LOCK_FILE:
        file = Path("uv.lock")
        changed = file.read_text().replace(', hash = "sha256:', ', sum = "sha256:')
    else:
        [file] = marks()[defence.threat]
        changed = without(file.read_text(), defence)
    (tree / file).write_text(changed)
    command = [sys.executable, "-m", "pytest", *PYTEST_OPTIONS, defence.test]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},  # noqa: TID251 - the tests' own, and the tree in front
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"does not end within {TIMEOUT_S} s"
    finally:
        shutil.copy(file, tree / file)
    if done.returncode == FAILED:
        return f"fails: {REASON.findall(done.stdout)[0][:MAX_REASON_CHARS]}"
    return "passes" if done.returncode == 0 else f"ends with status {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
