"""The build that compiles a bundle without its device, run with a levserve that writes down what it got."""

import base64
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from service.cli import build_parser
from service.device.chips import TARGETS
from service.settings.sources import load_settings

ROOT = Path(__file__).parents[2]
BUILD = yaml.safe_load((ROOT / "cloudbuild.bundle.yaml").read_text())
RECORDED = """#!/usr/bin/env bash
echo "$*" > "$CALL"
"""
ONE = {
    "model_uri": "gs://my-project-models/my-8b",
    "bundle_uri": "gs://b/levserve",
    "tokenizer_uri": "gs://my-project-models/t",
}
SEVERAL = {"gcs_bucket": "my-project-models", "models": "my-8b,my-1b", "bundle_uri": "gs://b/levserve"}


@pytest.fixture
def build(tmp_path):
    """Run the build's step with substitutions; return the words that levserve got."""
    (tmp_path / "levserve").write_text(RECORDED)
    (tmp_path / "levserve").chmod(0o755)

    def run(settings: dict[str, str], flags: str) -> list[str]:
        encoded = base64.b64encode(json.dumps(settings).encode()).decode()
        substitutions = {"_IMAGE": "x", "_TARGET": "v6e-4", "_SETTINGS": encoded, "_FLAGS": flags}
        assert substitutions.keys() == BUILD["substitutions"].keys()
        variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALL": str(tmp_path / "call"), **substitutions}
        # Cloud Build's own HOME, which the image's user may not write: to nobody is a folder under a file writable.
        variables |= {"HOME": "/dev/null/home", "TMPDIR": str(tmp_path)}
        [step] = BUILD["steps"]
        done = subprocess.run(
            ["bash", "-c", step["script"]], env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return shlex.split((tmp_path / "call").read_text())

    return run


@pytest.mark.parametrize(("settings", "flags"), [(ONE, ""), (SEVERAL, "--all")])
def test_levserve_compiles_for_the_target_with_the_settings_of_the_service(build, settings, flags):
    words = build(settings, flags)
    parsed = vars(build_parser().parse_args(words))
    assert (parsed["command"], parsed["target"], parsed.get("all", False)) == ("prewarm", "v6e-4", flags == "--all")
    read = load_settings({}, parsed["config"])
    assert {name: str(getattr(read, name)) for name in settings} == settings
    assert read.has_catalogue is (flags == "--all")


def test_settings_that_are_not_whole_end_the_build():
    [step] = BUILD["steps"]
    variables = {"PATH": "/usr/bin:/bin", "_SETTINGS": "?", "_TARGET": "v6e-4", "_FLAGS": ""}
    script = step["script"].replace("$HOME/settings.yaml", "/dev/null")
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "invalid input" in done.stderr


def test_terraform_names_every_target_that_is_a_machine_of_the_platforms():
    text = "".join(
        (ROOT / "terraform" / name).read_text() for name in ("cloud_run_gpu/shapes.tf", "gke_tpu/machines.tf")
    )
    maps = re.findall(r"bundle_targets = \{(.*?)\}", text, re.DOTALL)
    named = {target for found in maps for target in re.findall(r'= "(\S+)"', found)}
    others = {"h100", "h200"}  # GPUs that Cloud Run does not offer
    assert named == TARGETS.keys() - others


def test_the_target_of_a_machine_has_as_many_chips():
    text = (ROOT / "terraform" / "gke_tpu" / "machines.tf").read_text()
    for machine, target in re.findall(r'"(ct\S+)" += "(v\S+)"', text):
        topology = TARGETS[target].topology.partition(":")[2]
        assert re.search(rf'"{machine}" += .*"{topology}" = 1\b', text), machine
