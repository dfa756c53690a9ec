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


def test_it_has_no_part_that_cloud_build_would_refuse():
    assert set(BUILD) == {"substitutions", "steps", "options", "timeout"}  # the published schema takes any


def test_the_revision_gets_no_traffic_before_the_smoke_test():
    assert "--no-traffic" in STEPS["deploy"]["script"]
    assert "--tag=candidate" in STEPS["deploy"]["script"]
    moving = [name for name, step in STEPS.items() if "update-traffic" in step.get("script", "")]
    assert moving == ["promote"]


@pytest.mark.parametrize("name", ["prewarm", "deploy", "smoke", "promote"])
def test_a_failure_says_where_traffic_is_and_how_to_look_further(name):
    script = STEPS[name]["script"]
    assert re.search(r"Traffic is where (it was|the list above says)", script)
    assert re.search(r"Look further(, or try again,)? with:", script)
    assert "exit 1" in script


def test_the_tested_image_is_the_deployed_one():
    tested = STEPS["smoke"]["name"].replace("${", "$").replace("}", "")
    assert tested == "$_IMAGE:$BUILD_ID-$_ACCELERATOR"
    assert '--image="$_IMAGE:$BUILD_ID-$_ACCELERATOR"' in STEPS["deploy"]["script"]


def test_both_targets_are_built_and_pushed_and_the_job_runs_the_one_that_reads_levanter():
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    built = dict(re.findall(r"^build (\w+) \"(\S+)\"$", STEPS["build"]["script"], re.MULTILINE))
    assert built == {"serve": "$_IMAGE", "prewarm": "$_IMAGE-prewarm"}
    assert built.keys() <= stages
    assert 'for image in "$_IMAGE" "$_IMAGE-prewarm"' in STEPS["push"]["script"]
    assert '--image="$_IMAGE-prewarm:$BUILD_ID-$_ACCELERATOR"' in STEPS["prewarm"]["script"]


def test_no_key_and_no_token_is_on_a_command_line():
    given = re.findall(r"--(?:api-key|identity-token) (\S+?)[)\"]*$", STEPS["smoke"]["script"], re.MULTILINE)
    assert given == ["@/workspace/identity_token", "@/workspace/api_key", "auto"]
    written = re.findall(r"> /workspace/(\w+)$", STEPS["deploy"]["script"], re.MULTILINE)
    assert {"identity_token", "api_key"} <= set(written)


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
