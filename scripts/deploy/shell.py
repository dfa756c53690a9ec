"""Questions, and commands that are printed before they run."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def given(name: str) -> str:
    """Return the value of an environment variable, as of `make deploy-cloud-run MODEL=…`."""
    return os.environ.get(name, "").strip()  # noqa: TID251 - not the service


def ask(name: str, question: str, default: str = "") -> str:
    """Return the value of an environment variable, otherwise the answer to a question.

    Raises:
        SystemExit: there is no value, no default, and nothing to ask.
    """
    value = given(name)
    if not value and sys.stdin.isatty():
        value = input(f"{question}{f' [{default}]' if default else ''}: ").strip()
    value = value or default
    if not value:
        sys.exit(f"{name} has no value: {question}. Give it as `{name}=…`.")
    return value


def run(*command: str, env: dict[str, str] | None = None) -> None:
    """Print a command and run it.

    Raises:
        SystemExit: it failed.
    """
    show(command, env)
    done = subprocess.run(command, cwd=REPOSITORY, env=variables(env), check=False)
    if done.returncode:
        sys.exit(f"stopped: the last command failed with {done.returncode}. Run the same make target again to go on.")


def read(*command: str) -> str:
    """Print a command, run it, and return what it prints; empty if it fails."""
    show(command, None)
    done = subprocess.run(command, cwd=REPOSITORY, env=variables(None), stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def show(command: tuple[str, ...], env: dict[str, str] | None) -> None:
    """Print a command as a person would type it."""
    print("$", *(f"{name}={value}" for name, value in (env or {}).items()), shlex.join(command), flush=True)


def variables(env: dict[str, str] | None) -> dict[str, str]:
    """Return this process's environment with some more variables."""
    return {**os.environ, **(env or {})}  # noqa: TID251 - gcloud and terraform need theirs


def terraform(root: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Run terraform in a root; it shows its plan and asks, unless YES is set."""
    is_silent = arguments[0] in ("apply", "destroy") and os.environ.get("YES")  # noqa: TID251
    run("terraform", f"-chdir=terraform/{root}", *arguments, *(["-auto-approve"] if is_silent else []), env=env)


def output(root: str, name: str) -> str:
    """Return an output of an applied root."""
    return read("terraform", f"-chdir=terraform/{root}", "output", "-raw", name)
