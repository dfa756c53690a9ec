"""The build: its steps and their order; `test_cloud_build_run` runs them."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
BUILD = yaml.safe_load((ROOT / "cloudbuild.yaml").read_text())
STEPS = {step["id"]: step for step in BUILD["steps"]}


def test_the_order_is_check_build_push_prewarm_deploy_smoke_and_a_canary():
    canary = ["judge-0", "canary-5", "judge-5", "canary-50", "judge-50", "promote", "judge-100", "settle"]
    assert list(STEPS) == ["check", "build", "push", "prewarm", "deploy", "smoke", *canary]
    assert not any("waitFor" in step for step in BUILD["steps"])  # each waits for all before it


def test_it_has_no_part_that_cloud_build_would_refuse():
    assert set(BUILD) == {"substitutions", "steps", "options", "timeout"}  # the published schema takes any


def test_every_script_stops_at_the_first_error():
    for step in BUILD["steps"]:
        if "script" in step:
            assert step["script"].startswith("#!/usr/bin/env bash\nset -euo pipefail\n"), step["id"]


def test_every_substitution_is_given_and_used():
    text = "\n".join(step.get("script", "") + step["name"] for step in BUILD["steps"]) + " ".join(
        BUILD["substitutions"][name] for name in ("_IMAGE", "_PREWARM_IMAGE")
    )
    used = set(re.findall(r"\$\{?(_[A-Z_]+)", text))
    assert used == set(BUILD["substitutions"])


def test_ci_runs_what_a_person_runs():
    [command] = re.findall(r"^make (.*)$", STEPS["check"]["script"], re.MULTILINE)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(command.split()) <= targets


def test_an_image_is_named_by_its_accelerator():
    """The registry keeps the newest of each name: a tag would let CPU builds push GPU images out."""
    for name in ("_IMAGE", "_PREWARM_IMAGE"):
        assert BUILD["substitutions"][name].endswith("-${_ACCELERATOR}")


def test_nothing_is_pulled_from_docker_hub_without_an_account():
    names = [step["name"] for step in BUILD["steps"]]
    names += re.findall(
        r"^(?:ARG PYTHON_IMAGE=|FROM |COPY --from=)(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    registries = {name.partition("/")[0] for name in names if "." in name.partition("/")[0]}
    assert registries == {"mirror.gcr.io", "gcr.io", "ghcr.io"}
    stages = set(re.findall(r" AS (\S+)", (ROOT / "Dockerfile").read_text()))
    own = stages | {"${PYTHON_IMAGE}", "${_IMAGE}:${_TAG}"}
    assert [name for name in names if "." not in name.partition("/")[0] and name not in own] == []
