"""Terraform as these scripts run it."""

import os
import subprocess
from pathlib import Path


def terraform(folder: Path, command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run terraform in a folder."""
    return subprocess.run(
        ["terraform", *command, "-no-color"],
        cwd=folder, env=environment(variables), capture_output=True, text=True, check=False,
    )  # fmt: skip


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Return this process's environment for a terraform that asks nothing and looks for no update."""
    quiet = {"TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}
    quiet |= {"TF_CLI_CONFIG_FILE": "/dev/null"} if variables else {}
    return {**os.environ, **quiet, **variables}  # noqa: TID251 - terraform needs its own variables
