"""Take each defence of docs/security.md out, in a copy of the repository, and report how its test fails.

`python -m scripts.defences [T1 ...]`; the exit code is 1 if a test passes without the defence that it is for.
"""

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
    """One defence: the text that is taken out of a file, what replaces it, and the test that is to fail then."""

    threat: str
    file: str
    text: str
    without: str
    test: str


DEFENCES = (
    Defence("T1", "service/server/request_reader.py", "if len(request.headers) > MAX_HEADERS:", "if False:",
            f"{CONNECTIONS}heads_have_a_size_and_a_number_of_headers"),
    Defence("T2", "service/api/http/receive.py", "if num_bytes > accepted.max_bytes:", "if False:",
            f"{THREATS}t2_bodies_are_counted_as_they_arrive_and_not_decompressed"),
    Defence("T3", "service/server/connection.py",
            "limits(0)\n        self._head_timer = self.loop.call_later(self.limits.head_s, self._give_up_head)",
            "limits(0)", f"{CONNECTIONS}a_silent_client_is_disconnected"),
    Defence("T4", "service/api/schema/wire.py", ", catch_duplicate_keys=True", "", f"{THREATS}t4_json_bombs"),
    Defence("T5", "service/api/schema/generation.py", "n: int = Field(default=1, ge=1, le=MAX_CHOICES)", "n: int = 1",
            f"{THREATS}t5_numbers_out_of_range"),
    Defence("T6", "service/api/schema/completions.py", "if len(self.prompt) * self.n > MAX_SEQUENCES:", "if False:",
            f"{THREATS}t6_fan_out"),
    Defence("T7", "service/text/tokenizer.py", "if fewest_tokens > max_model_len:", "if False:",
            f"{THREATS}t7_prompts_that_cannot_fit_are_not_encoded"),
    Defence("T8", "service/api/generation/completion_prompts.py",
            "not (min(prompt) >= 0 and max(prompt) < model.vocab_size)", "False",
            f"{THREATS}t8_token_ids_that_do_not_exist"),
    Defence("T9", "service/text/grammar/schema.py", "if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:", "if False:",
            f"{THREATS}t9_schemas_and_patterns"),
    Defence("T10", "service/api/generation/message.py",
            'calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]',
            'calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]; '
            '[eval(found) for found in __import__("re").findall(r"open\\(.*?close\\(\\)", '
            'calls[call["index"]]["function"]["arguments"])]',
            "tests/api/test_untrusted_content.py::test_an_expression_in_the_arguments_of_a_call_is_not_evaluated"),
    Defence("T11", "service/api/generation/rendering.py", "items() if name in template.variables}",
            "items()}", f"{THREATS}t11_variables_that_the_template_does_not_read_are_not_passed_to_it"),
    Defence("T12", "service/text/sandbox.py", "from jinja2.sandbox import ImmutableSandboxedEnvironment",
            "from jinja2 import Environment as ImmutableSandboxedEnvironment",
            f"{THREATS}t12_a_checkpoints_template_that_reaches_out_ends_its_request_alone"),
    Defence("T13", "service/weights/pickled/machine.py",
            'raise PickleRefusal(f"asks for {path!r:.200}, which no tensor needs.", path)',
            '__import__(path.rpartition(".")[0], fromlist=["a"])', HOSTILE_MODEL),
    Defence("T14", "service/checkpoint/model_config.py", "    return values\n\n\ndef parse_levanter_yaml",
            '    "auto_map" in values and exec((__import__("pathlib").Path(uri) / "canary.py").read_text())\n'
            "    return values\n\n\ndef parse_levanter_yaml", HOSTILE_MODEL),
    Defence("T15", "service/checkpoint/discover.py", "    if missing:\n", "    if False:\n", HOSTILE_MODEL),
    Defence("T16", "service/weights/safetensors.py",
            "if header_bytes > min(MAX_HEADER_BYTES, size_bytes - PREFIX_BYTES):", "if False:",
            HOSTILE_MODEL),
    Defence("T17", "service/bundles/signature.py", "if not self._keys:\n            return True", "return True",
            "tests/bundles/test_poisoned_bundle.py::"
            "test_a_bundle_without_our_signature_is_not_unpickled_and_requests_are_answered"),
    Defence("T18", "service/api/generation/chat_prompt.py",
            """raise UnsupportedParameter(f"{param}.type", f"the model '{model.name}' reads text alone.")""", "pass",
            "tests/api/test_untrusted_content.py::test_media_are_neither_fetched_nor_decoded"),
    Defence("T19", "service/media/images.py", "if size.width * size.height > MAX_PIXELS:", "if False:",
            "tests/media/test_images.py::test_pixels_are_bounded_before_any_is_decoded"),
    Defence("T20", "service/api/http/auth.py", 'scope["path"] not in PROBE_PATHS',
            'scope["path"] not in PROBE_PATHS and not scope["path"].startswith("//")',
            f"{THREATS}t20_nothing_opens_without_a_key"),
    Defence("T21", "service/api/http/keys.py", "len(bearers) <= 1 and len(plain) <= 1 and len(secrets) == 1 and",
            "secrets and", f"{THREATS}t21_odd_keys"),
    Defence("T22", "service/server/admin.py",
            'raise UnknownRoute("There is no such route. Set ADMIN_API_KEY to enable it.")',
            "return Answer(200, self._service.stats(), {})", f"{THREATS}t22_no_operators_route_without_its_key"),
    Defence("T23", "service/api/generation/admission.py", "return call.cache_salt\n", 'return b""\n',
            f"{THREATS}t23_each_key_has_a_prefix_cache_of_its_own"),
    Defence("T24", "service/api/http/call.py", 'c if c.isprintable() else "?" for c', "c for c",
            f"{THREATS}t24_a_client_cannot_write_a_log_line"),
    Defence("T25", "service/api/http/errors.py", 'f"The server had an error. Request id: {request_id}."', "repr(error)",
            f"{THREATS}t25_a_fault_of_ours_shows_no_detail"),
    Defence("T26", "service/api/http/receive.py",
            'if scope["method"] in METHODS_WITH_BODY and not is_accepted:', "if False:",
            f"{THREATS}t26_pages_of_other_origins"),
    Defence("T27", "service/server/connection.py",
            "size = self.transport.get_write_buffer_size()\n        self._write_timer =", "_ =",
            f"{CONNECTIONS}a_client_that_does_not_read_is_disconnected"),
    Defence("T28", "service/server/request_reader.py",
            'if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:', "if False:",
            f"{CONNECTIONS}a_request_that_another_server_could_read_otherwise_is_refused"),
    Defence("T29", "uv.lock", ', hash = "sha256:', ', sum = "sha256:',
            "tests/deploy/test_packages.py::test_another_file_than_the_locked_one_is_not_installed"),
    Defence("T30", "service/storage/hub_errors.py", 'f"HTTP {status}. Set HF_TOKEN to a token that may read it."',
            "str(error.response.headers)",
            "tests/contract/test_canaries.py::"
            "test_a_model_that_the_hub_refuses_shows_no_token_to_those_who_name_it"),
    Defence("T31", "service/text/images.py", "if len(parts) != len(images) + 1:", "if False:",
            "tests/api/test_seeing.py::test_no_text_of_a_request_stands_for_an_image"),
    Defence("T32", "service/engine/schedule/pages.py",
            "if placed.start < start + page_size and start < placed.end:", "if False:",
            "tests/engine/schedule/test_media.py::test_another_medium_or_place_shares_the_pages_before_it_alone"),
    Defence("T33", "service/api/work/remote_images.py",
            "if not addresses or not all(map(self._is_allowed, addresses)):", "if False:",
            "tests/api/work/test_remote_images.py::test_one_address_that_is_not_public_is_enough_to_refuse"),
    Defence("T34", "service/catalogue/catalogue.py",
            'if inside.startswith("/") or "://" in inside or name_fault(inside) is not None:', "if False:",
            "tests/server/test_adapters.py::"
            "test_what_is_no_adapter_of_this_catalogue_is_refused_with_the_reason"),
    Defence("T35", "service/api/http/form.py", "max_fields=MAX_FIELDS", "max_fields=2**31",
            "tests/api/http/test_form.py::test_what_is_no_form_with_one_file_is_refused"),
    Defence("T36", "service/engine/schedule/pages.py", "parts = (salt, adapter)", "parts = (salt,)",
            "tests/engine/schedule/test_adapter_slots.py::test_prefixes_are_found_with_the_same_adapter_alone"),
    Defence("T37", "service/checkpoint/adapters/locate.py", "if sizes[name] > limit:", "if False:",
            "tests/checkpoint/adapters/test_read.py::test_a_file_that_is_too_large_is_refused_before_it_is_read"),
)  # fmt: skip


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


def _result(tree: Path, defence: Defence) -> str:
    """Return how a test ends without its defence."""
    source = Path(defence.file).read_text()
    if defence.text not in source:
        return f"cannot be tried: {defence.file} does not contain its text"
    (tree / defence.file).write_text(source.replace(defence.text, defence.without))
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
        (tree / defence.file).write_text(source)
    if done.returncode == FAILED:
        return f"fails: {REASON.findall(done.stdout)[0][:MAX_REASON_CHARS]}"
    return "passes" if done.returncode == 0 else f"ends with status {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
