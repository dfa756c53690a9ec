"""The scan: a finding fails, its absence is remembered, and a scan that cannot run says so."""

import re
import shutil
import subprocess

import pytest

from scripts import check_scan

ROOT = check_scan.REPOSITORY


@pytest.fixture
def scanned(monkeypatch, tmp_path):
    """Stand in for checkov, with a memory of its own; return the calls and what it answers."""
    calls, answers = [], {"python": (0, "", ""), "checkov": (0, "Passed checks: 9, Failed checks: 0", "")}

    def run(command, **options):
        calls.append(command)
        return subprocess.CompletedProcess(command, *answers[command[5]])

    monkeypatch.setattr(check_scan, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(check_scan, "uv", lambda: "uv")
    monkeypatch.setattr(check_scan.subprocess, "run", run)
    return calls, answers


def test_a_finding_fails_and_is_looked_for_again(scanned):
    calls, answers = scanned
    answers["checkov"] = (1, "Check: CKV_GCP_114", "")
    for _ in range(2):
        ok, said = check_scan.scan()
        assert not ok
        assert "CKV_GCP_114" in said
    assert [command[5] for command in calls] == ["python", "checkov"] * 2


def test_what_was_scanned_without_a_finding_is_scanned_again_only_after_a_change(scanned, monkeypatch):
    calls, _ = scanned
    assert check_scan.scan() == (True, "checkov: ok: Passed checks: 9, Failed checks: 0")
    assert check_scan.scan() == (True, "checkov: nothing has changed since the last scan, which found nothing")
    assert len(calls) == 2
    monkeypatch.setattr(check_scan, "digest", lambda: "of other files")
    check_scan.scan()
    assert len(calls) == 4


def test_a_scan_that_cannot_run_says_so_in_capitals_and_remembers_nothing(scanned):
    calls, answers = scanned
    answers["python"] = (1, "", "no registry")
    for _ in range(2):
        ok, said = check_scan.scan()
        assert ok
        assert "SKIPPED, nothing was scanned: uv could not install checkov" in said
        assert "no registry" in said
    assert [command[5] for command in calls] == ["python"] * 2


def test_a_registry_that_hangs_is_given_up(scanned, monkeypatch):
    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(check_scan.subprocess, "run", run)
    ok, said = check_scan.scan()
    assert (ok, "SKIPPED" in said) == (True, True)


def test_a_change_of_a_root_or_of_a_waiver_is_scanned(monkeypatch, tmp_path):
    for name in (*check_scan.SCANNED, ".checkov.yaml"):
        check_scan.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(check_scan, "REPOSITORY", tmp_path)
    monkeypatch.setattr(check_scan, "CONFIGURATION", tmp_path / ".checkov.yaml")
    digests = {check_scan.digest()}
    (tmp_path / "terraform" / "gke_tpu" / "mine.auto.tfvars").write_text("a")  # of a person, not of the repository
    assert {check_scan.digest()} == digests
    for changed in ("terraform/gke_tpu/main.tf", ".github/workflows/more.yml", "Dockerfile", ".checkov.yaml"):
        (tmp_path / changed).write_text("changed")
        digests.add(check_scan.digest())
    assert len(digests) == 5


def test_ci_scans_and_a_person_scans_the_same():
    makefile = (ROOT / "Makefile").read_text()
    [checks] = re.findall(r"^CHECKS := (.*)", makefile, re.MULTILINE)
    [check] = re.findall(r"^check-deployment:.*\n(.*)", makefile, re.MULTILINE)
    assert "check-deployment" in checks.split()
    assert "python -m scripts.check_deployment" in check
    assert "check_scan.scan" in (ROOT / "scripts" / "check_deployment.py").read_text()
    assert "python -m scripts.check_scan" in makefile


@pytest.mark.slow
def test_a_known_fault_is_found(monkeypatch, tmp_path):
    for name in (*check_scan.SCANNED, ".checkov.yaml"):
        check_scan.copy(ROOT / name, tmp_path / name)
    if (reason := check_scan.cannot_run()) is not None:
        pytest.skip(reason)
    storage = tmp_path / "terraform" / "foundation" / "storage.tf"
    storage.write_text(re.sub("public_access_prevention.*", "", storage.read_text()))
    monkeypatch.setattr(check_scan, "REPOSITORY", tmp_path)
    monkeypatch.setattr(check_scan, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(check_scan, "uv", lambda: str(ROOT / ".tools" / "uv" / "bin" / "uv"))
    ok, said = check_scan.scan()
    assert not ok
    assert "CKV_GCP_114" in said
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
