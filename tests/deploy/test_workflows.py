"""The workflows of GitHub: what they run, and nothing that somebody else can change under them."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_its_commit_and_says_its_version(path):
    uses = re.findall(r"uses: (.*)", path.read_text())
    assert uses
    assert [line for line in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_a_pull_request_of_a_fork_gets_the_verdict_of_ci_without_a_secret():
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    workflow = yaml.safe_load(text)
    assert "pull_request" in workflow[True]  # YAML 1.1 reads `on` so
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in text
    [job] = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]


def test_all_tests_run_every_night_and_smoke_after_a_deployment():
    nightly = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    assert nightly[True]["schedule"]
    assert [step["run"] for step in nightly["jobs"]["test-all"]["steps"] if "run" in step] == ["make test-all"]
    smoke = yaml.safe_load((ROOT / ".github/workflows/smoke.yml").read_text())
    assert {"workflow_dispatch", "workflow_call", "deployment_status"} <= smoke[True].keys()


def test_the_version_has_its_changes():
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert f"## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
