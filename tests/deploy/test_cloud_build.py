"""The build: its order, and that traffic moves last."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BUILD = yaml.safe_load((ROOT / "cloudbuild.yaml").read_text())
STEPS = {step["id"]: step for step in BUILD["steps"]}


def test_the_order_is_check_build_push_prewarm_deploy_smoke_promote():
    assert list(STEPS) == ["check", "build", "push", "prewarm", "deploy", "smoke", "promote"]
    assert not any("waitFor" in step for step in BUILD["steps"])  # each waits for all before it


def test_the_revision_gets_no_traffic_before_the_smoke_test():
    assert "--no-traffic" in STEPS["deploy"]["script"]
    assert "--tag=candidate" in STEPS["deploy"]["script"]
    moving = [name for name, step in STEPS.items() if "update-traffic" in step.get("script", "")]
    assert moving == ["promote"]


@pytest.mark.parametrize("name", ["prewarm", "deploy", "smoke"])
def test_a_failure_says_where_traffic_is_and_how_to_look_further(name):
    script = STEPS[name]["script"]
    assert "Traffic is where it was" in script
    assert "Look further with" in script
    assert "exit 1" in script


def test_the_tested_image_is_the_deployed_one():
    tested = STEPS["smoke"]["name"].replace("${", "$").replace("}", "")
    assert tested == "$_IMAGE:$BUILD_ID-$_ACCELERATOR"
    for name in ("push", "prewarm", "deploy"):
        assert "$_IMAGE:$BUILD_ID-$_ACCELERATOR" in STEPS[name]["script"]


def test_every_script_stops_at_the_first_error():
    for step in BUILD["steps"]:
        if "script" in step:
            assert step["script"].startswith("#!/usr/bin/env bash\nset -euo pipefail\n"), step["id"]


def test_every_substitution_is_given_and_used():
    text = (
        "\n".join(step.get("script", "") + step["name"] for step in BUILD["steps"]) + BUILD["substitutions"]["_IMAGE"]
    )
    used = set(re.findall(r"\$\{?(_[A-Z_]+)", text))
    assert used == set(BUILD["substitutions"])


def test_ci_runs_what_a_person_runs():
    assert STEPS["check"]["entrypoint"] == "make"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(STEPS["check"]["args"]) <= targets
