"""Check the Terraform roots: format, validity, tests, examples, and that a plan after an apply is empty.

The providers come from the registry, or from an offline checker (LEVSERVE_TERRAFORM_CHECK, or
../shared/tools/terraform/check next to the repository). If neither is available, the check prints this and passes.
The tests mock all providers, so they need neither a cloud nor credentials. Every plan that a test or an example makes
is kept, for the rules of the platform.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.check_settled import settle
from scripts.terraform import environment, terraform

REPOSITORY = Path(__file__).resolve().parent.parent
TERRAFORM = REPOSITORY / "terraform"
ROOTS = ("foundation", "cloud_run_gpu", "gke_cluster", "gke_tpu")
MODULES = ("modules/settings",)
COMPOSITIONS = ("examples/two_models",)
OFFLINE_CHECKER = REPOSITORY.parent / "shared" / "tools" / "terraform" / "check"
# Terraform's messages for an unreachable registry, as opposed to a wrong configuration.
UNREACHABLE = (
    "could not connect to",
    "failed to request discovery document",
    "no such host",
    "dial tcp",
    "proxyconnect",
)
# Results of the last check that passed, by the digest of what it checked.
CACHE = REPOSITORY / ".cache" / "check_terraform"
SCRIPTS = [REPOSITORY / "scripts" / f"{name}.py" for name in ("check_settled", "check_terraform", "terraform")]
IGNORED = re.compile(r"/\.terraform/|\.tfstate|\.auto\.tfvars$")

type Document = dict[str, Any]


@dataclass
class Checked:
    """The result of checking one root."""

    name: str
    failures: list[str] = field(default_factory=list)
    plans: dict[str, Document] = field(default_factory=dict)  # by the test or example that made it


def main() -> int:
    """Check all roots; return 0 if they pass or cannot be checked on this machine."""
    ok, _ = check()
    return int(not ok)


def check() -> tuple[bool, dict[str, Document]]:
    """Check all roots; return whether they pass, and every plan by its origin."""
    if shutil.which("terraform") is None:
        print("terraform is not installed: the roots under terraform/ are not checked")
        return True, {}
    formatted = subprocess.run(
        ["terraform", "fmt", "-check", "-diff", "-recursive", str(TERRAFORM)],
        env=environment({}), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if formatted.returncode:
        print(f"terraform: not formatted; run `terraform fmt -recursive terraform`\n{formatted.stdout}")
        return False, {}
    kept = CACHE / f"{digest()}.json"
    if kept.is_file():
        plans = json.loads(kept.read_text())
        print(f"terraform: nothing has changed since the last check: {len(plans)} plans")
        return True, plans
    with tempfile.TemporaryDirectory() as folder, providers() as variables:
        # A copy, because init writes lock files and working folders.
        copy = Path(folder) / "terraform"
        shutil.copytree(TERRAFORM, copy, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*", "*.auto.tfvars"))
        if not variables and not is_registry_reachable(copy / ROOTS[0]):
            print("terraform: no registry can be reached: validate and test are skipped")
            return True, {}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            names = (*ROOTS, *MODULES, *COMPOSITIONS)
            results = list(pool.map(lambda name: check_root(copy / name, name, variables), names))
    for result in results:
        print(f"terraform: {result.name}: {'failed' if result.failures else f'ok, {len(result.plans)} plans'}")
        print("".join(f"{failure}\n" for failure in result.failures), end="")
    plans = {
        origin: {name: plan[name] for name in ("resource_changes", "output_changes") if name in plan}
        for result in results
        for origin, plan in result.plans.items()
    }
    ok = not any(result.failures for result in results)
    if ok:
        shutil.rmtree(CACHE, ignore_errors=True)
        CACHE.mkdir(parents=True)
        kept.write_text(json.dumps(plans))
    return ok, plans


def digest() -> str:
    """Return a digest of everything that the result depends on: roots, this script, terraform, and the providers."""
    total = hashlib.sha256()
    checker = offline_checker()
    sources = [path for path in sorted(TERRAFORM.rglob("*")) if path.is_file() and not IGNORED.search(str(path))]
    for path in [*sources, *SCRIPTS, *(sorted(checker.parent.iterdir()) if checker.is_file() else [])]:
        total.update(f"{path}\0".encode() + (path.read_bytes() if path.is_file() else b""))
    version = subprocess.run(["terraform", "version", "-json"], env=environment({}), capture_output=True, check=False)
    total.update(version.stdout)
    return total.hexdigest()[:16]


def check_root(folder: Path, name: str, variables: dict[str, str]) -> Checked:
    """Check one root: init, validate, its tests, its examples; with offline providers also an apply and a plan."""
    result = Checked(name)
    for command in (["init", "-backend=false", "-input=false"], ["validate"]):
        done = terraform(folder, command, variables)
        if done.returncode:
            result.failures.append(done.stdout + done.stderr)
            return result
    runs = [("tests", ["test", "-json", "-verbose"])] if (folder / "tests").is_dir() else []
    runs += [
        (example.stem, ["test", "-json", "-verbose", "-test-directory=examples", f"-var-file=examples/{example.name}"])
        for example in examples_of(folder)
    ]
    for title, command in runs:
        done = terraform(folder, command, variables)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for message in messages:
            if message["type"] == "test_plan":
                result.plans[f"{name}: {title}: {message['@testrun']}"] = message["test_plan"]
        if done.returncode:
            result.failures += [explained(message) for message in messages if message["type"] == "diagnostic"]
            result.failures += [done.stderr]
    if variables:
        inputs = [(example.stem, [f"-var-file=examples/{example.name}"]) for example in examples_of(folder)]
        inputs += [(name, [])] if name in COMPOSITIONS else []
        result.failures += [text for title, flags in inputs for text in settle(folder, title, flags, variables)]
    return result


def explained(message: Document) -> str:
    """Return the text of a diagnostic of `terraform test -json`."""
    diagnostic = message["diagnostic"]
    place = diagnostic.get("range", {})
    where = f"{place.get('filename', '')}:{place.get('start', {}).get('line', '')}"
    return f"{where}: {diagnostic['summary']}\n{diagnostic['detail']}"


@contextmanager
def providers() -> Iterator[dict[str, str]]:
    """Yield the environment of the offline checker's providers, which know schemas alone; empty without the checker."""
    checker = offline_checker()
    if not checker.is_file():
        yield {}
        return
    cache = Path(os.environ.get("CHECK_CACHE", Path.home() / ".cache" / "levserve-terraform"))  # noqa: TID251
    if not (cache / "stamp").is_file():
        subprocess.run([str(checker), str(TERRAFORM / MODULES[0])], check=True)  # builds the schemas, once
    schemas = [str(cache / f"{name}.json") for name in ("google", "kubernetes", "helm")]
    command = [str(cache / "venv" / "bin" / "python"), str(checker.parent / "schema_provider.py"), *schemas]
    with tempfile.TemporaryFile("w+") as said:
        server = subprocess.Popen(command, stdout=said)
        try:
            text = ""
            while not text.endswith("}\n") and server.poll() is None:
                time.sleep(0.05)
                said.seek(0)
                text = said.read()
            yield {"TF_REATTACH_PROVIDERS": text.strip()}
        finally:
            server.kill()
            server.wait()


def offline_checker() -> Path:
    """Return where the offline checker is, or would be."""
    return Path(os.environ.get("LEVSERVE_TERRAFORM_CHECK", OFFLINE_CHECKER))  # noqa: TID251 - a tool, not the service


def is_registry_reachable(root: Path) -> bool:
    """Return whether `terraform init` reaches the registry; a wrong configuration counts as reached."""
    done = terraform(root, ["init", "-backend=false", "-input=false"], {})
    said = (done.stdout + done.stderr).lower()
    return done.returncode == 0 or not any(phrase in said for phrase in UNREACHABLE)


def examples_of(root: Path) -> list[Path]:
    """Return the variable files of the examples of a root."""
    return sorted((root / "examples").glob("*.tfvars"))


if __name__ == "__main__":
    sys.exit(main())
