"""The gcloud lines that are linted are those that people type."""

import subprocess
from pathlib import Path

import pytest

from scripts import check_deployment, check_terraform
from scripts.check_deployment import FENCE, commands_of


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
    assert sources.count("docs/deploy.md") >= 10


def test_an_absent_terraform_is_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(check_terraform.shutil, "which", lambda name: None)
    assert check_terraform.main() == 0
    assert "not installed" in capsys.readouterr().out


def test_a_registry_out_of_reach_is_no_failure(monkeypatch, capsys):
    said = "Could not retrieve the list of available versions: could not connect to registry.terraform.io"
    monkeypatch.setattr(
        check_terraform.subprocess, "run", lambda *args, **kwargs: subprocess.CompletedProcess(args, 1, "", said)
    )
    assert check_terraform.check_with_registry() == 0
    assert "no registry can be reached" in capsys.readouterr().out


def test_a_wrong_configuration_is_a_failure(monkeypatch):
    said = "Error: Unsupported argument"
    monkeypatch.setattr(
        check_terraform.subprocess, "run", lambda *args, **kwargs: subprocess.CompletedProcess(args, 1, "", said)
    )
    assert check_terraform.check_with_registry() == 1


def test_an_absent_gcloud_is_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(check_deployment.shutil, "which", lambda name: None)
    assert check_deployment.check_gcloud_lines()
    assert "not installed" in capsys.readouterr().out


def test_an_absent_dockerfile_is_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(check_deployment, "DOCKERFILE", Path("nowhere"))
    assert check_deployment.check_dockerfile()
    assert "skipped" in capsys.readouterr().out
