"""Properties of the image that its Dockerfile shows."""

import json
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.smoke.stand_in import StandIn, StandInServer

ROOT = Path(__file__).parents[2]
DOCKERFILE = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())


def instruction(name: str) -> str:
    [value] = re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)
    return value


def test_the_server_is_what_a_build_without_a_target_makes():
    assert re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE)[-1] == "serve"


def test_it_runs_as_a_number_that_is_not_root_and_gets_the_signals_itself():
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", instruction("USER"))
    assert json.loads(instruction("ENTRYPOINT")) == ["levserve"]
    assert json.loads(re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)[-1]) == ["serve"]
    assert instruction("STOPSIGNAL") == "SIGTERM"


def test_every_accelerator_is_an_extra_and_every_package_left_out_is_in_the_lock():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    accelerators = re.search(r"one of cpu, ([\w, ]+)\.", DOCKERFILE)[1].split(", ")
    assert set(accelerators) == set(extras) - {"levanter", "media", "otel", "ray"}
    assert DOCKERFILE.count("uv sync ") == DOCKERFILE.count(" --extra=otel --extra=media ") == 2
    locked = {package["name"] for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    assert set(re.findall(r"--no-install-package (\S+)", DOCKERFILE)) <= locked


def test_uv_is_the_version_of_the_makefile():
    [version] = re.findall(r"^version=(\S+)$", (ROOT / "scripts" / "install_uv.sh").read_text(), re.MULTILINE)
    assert f"ghcr.io/astral-sh/uv:{version} " in DOCKERFILE


def test_nothing_of_the_server_imports_what_the_image_leaves_out():
    names = {"tensorstore", "orbax", "uvloop"}
    imports = re.compile(rf"^\s*(?:import|from) ({'|'.join(names)})\b", re.MULTILINE)
    found = {
        str(path.relative_to(ROOT)) for path in (ROOT / "service").rglob("*.py") if imports.search(path.read_text())
    }
    assert found <= {"service/checkpoint/levanter.py"}  # which needs the target `prewarm` in any case


def health_check(port: int) -> int:
    command = json.loads(instruction("HEALTHCHECK").partition(" CMD ")[2])
    assert command[0] == "python"
    ran = subprocess.run(
        [sys.executable, *command[1:]], env={"PORT": str(port)}, check=False, capture_output=True, timeout=30
    )
    return ran.returncode


@pytest.mark.parametrize(("ready_after", "code"), [(0, 0), (1000, 1)])
def test_the_health_check_says_whether_it_is_ready(ready_after, code):
    with StandInServer(StandIn(ready_after=ready_after)) as server:
        assert health_check(int(server.url.rpartition(":")[2])) == code


def test_the_health_check_fails_where_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert health_check(free.getsockname()[1]) != 0


def test_a_release_builds_every_image_with_its_contents_and_origin_and_scans_it():
    import yaml

    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["image"]
    accelerators = re.search(r"one of (cpu, [\w, ]+)\.", DOCKERFILE)[1].split(", ")
    matrix = release["strategy"]["matrix"]
    assert sorted(matrix["accelerator"]) == sorted(accelerators)
    assert set(matrix["target"]) <= set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE))
    [build] = [step["with"] for step in release["steps"] if "build-push-action" in step.get("uses", "")]
    assert (build["push"], build["sbom"], build["provenance"]) == (True, True, "mode=max")
    [scan] = [step["with"] for step in release["steps"] if "trivy-action" in step.get("uses", "")]
    assert scan["image-ref"].endswith("@${{ steps.build.outputs.digest }}")
    assert (scan["severity"], scan["ignore-unfixed"], scan["exit-code"]) == ("CRITICAL", True, "1")
