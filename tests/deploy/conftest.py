"""A journey: a shell script in a clone of the repository and a new project."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.world import STAND_IN, Platform

ROOT = Path(__file__).parents[2]
COMMANDS = ("gcloud", "terraform", "kubectl", "docker", "levserve")
# What a person has beside the clone.
FILES = ("my-8b", "my-3b", "my-run", "home/.config/gcloud")
SYSTEM = ("bash", "cat", "cut", "env", "id", "mkdir", "openssl", "sed", "tr")
TOOLS = {
    "make": f"""#!/usr/bin/env bash
for word in "$@"; do case "$word" in *=*) export "$word" ;; *) target=$word ;; esac; done
case "$target" in
  deploy-cloud-run|deploy-gke|teardown) exec {sys.executable} -m scripts.deploy "${{target#deploy-}}" ;;
esac
""",
    "curl": "#!/usr/bin/env bash\necho '{}'\n",
}


@dataclass
class Journey:
    """How a journey went."""

    code: int
    said: str
    calls: list[str]
    state: dict


@pytest.fixture
def travel(tmp_path):
    """Run a shell script in a copy of the repository, in a new project."""
    clone, bin_folder = tmp_path / "clone", tmp_path / "bin"
    clone.mkdir()
    for name in ("terraform", "scripts"):
        ignored = shutil.ignore_patterns(".terraform", "*.auto.tfvars", "*.tfstate*")
        shutil.copytree(ROOT / name, clone / name, ignore=ignored)
    for name in ("cloudbuild.yaml", "cloudbuild.bundle.yaml", "Dockerfile"):
        shutil.copy(ROOT / name, clone)
    bin_folder.mkdir()
    for name, text in {**dict.fromkeys(COMMANDS, STAND_IN), **TOOLS}.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    for name in SYSTEM:  # and no others: a tool of this machine would hide that a journey installs it
        (bin_folder / name).symlink_to(shutil.which(name))
    for name in FILES:
        (clone / name).mkdir(parents=True)
        (clone / name / "config.json").write_text("{}")

    platform = Platform()

    def run(script: str, stdin: int = subprocess.DEVNULL, **variables: str) -> Journey:
        environment = {"PATH": str(bin_folder), "HOME": str(clone / "home"), "YES": "1"}
        environment |= {"WORLD_PORT": str(platform.server_address[1]), **variables}
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\nshopt -s inherit_errexit\n{script}"],
            cwd=clone, env=environment, stdin=stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return Journey(done.returncode, done.stdout + done.stderr, platform.state["calls"], platform.state)

    yield run
    platform.shutdown()
    platform.server_close()
