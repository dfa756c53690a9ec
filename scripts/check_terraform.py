"""Check the Terraform roots: format, validity, and the tests in their `tests/` and `examples/`.

The providers come from the registry, or from an offline checker (LEVSERVE_TERRAFORM_CHECK, or
../shared/tools/terraform/check next to the repository). If neither is available, the check prints this and passes.
The tests mock all providers, so they need neither a cloud nor credentials.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ROOTS = tuple(REPOSITORY / "terraform" / name for name in ("foundation", "cloud_run_gpu", "gke_tpu"))
OFFLINE_CHECKER = REPOSITORY.parent / "shared" / "tools" / "terraform" / "check"
# Terraform's messages for an unreachable registry, as opposed to a wrong configuration.
UNREACHABLE = (
    "could not connect to",
    "failed to request discovery document",
    "no such host",
    "dial tcp",
    "proxyconnect",
)


def main() -> int:
    """Check all roots; return 0 if they pass or cannot be checked on this machine."""
    if shutil.which("terraform") is None:
        print("terraform is not installed: the roots under terraform/ are not checked")
        return 0
    if run(["terraform", "fmt", "-check", "-diff", "-recursive", str(REPOSITORY / "terraform")]):
        print("terraform: not formatted; run `terraform fmt -recursive terraform`")
        return 1
    checker = Path(os.environ.get("LEVSERVE_TERRAFORM_CHECK", OFFLINE_CHECKER))  # noqa: TID251 - a tool, not the service
    return check_offline(checker) if checker.is_file() else check_with_registry()


def check_offline(checker: Path) -> int:
    """Check with local provider schemas; return 0 or 1."""
    failed = run([str(checker), *map(str, ROOTS)])
    for root in ROOTS:
        for example in examples_of(root):
            print(f"== {example.relative_to(REPOSITORY)}")
            failed |= run(["env", f"TF_CLI_ARGS_test={' '.join(example_flags(example))}", str(checker), str(root)])
    return failed


def check_with_registry() -> int:
    """Check with providers from the registry; return 0 or 1."""
    for root in ROOTS:
        print(f"== {root.relative_to(REPOSITORY)}")
        initialized = subprocess.run(
            ["terraform", f"-chdir={root}", "init", "-backend=false", "-input=false", "-no-color"],
            capture_output=True,
            text=True,
            check=False,
        )
        if initialized.returncode:
            output = initialized.stdout + initialized.stderr
            if any(phrase in output.lower() for phrase in UNREACHABLE):
                print("terraform: no registry can be reached: validate and test are skipped")
                return 0
            print(output)
            return 1
        commands = [["validate", "-no-color"], ["test", "-no-color"]]
        commands += [["test", "-no-color", *example_flags(example)] for example in examples_of(root)]
        if any(run(["terraform", f"-chdir={root}", *command]) for command in commands):
            return 1
    return 0


def examples_of(root: Path) -> list[Path]:
    """Return the variable files of the examples of a root."""
    return sorted((root / "examples").glob("*.tfvars"))


def example_flags(example: Path) -> list[str]:
    """Return the flags with which `terraform test` plans an example."""
    return ["-test-directory=examples", f"-var-file=examples/{example.name}"]


def run(command: Sequence[str]) -> int:
    """Run a command; return 0 or 1."""
    sys.stdout.flush()
    return int(subprocess.run(command, check=False).returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
