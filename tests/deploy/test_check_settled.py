"""A plan after an apply is empty, whatever gcloud or the autoscaler did in between; one that is not is noticed."""

import json
import re
import shutil

import pytest

from scripts import check_settled, check_terraform
from scripts.terraform import terraform

needs_terraform = pytest.mark.skipif(
    shutil.which("terraform") is None or not check_terraform.offline_checker().is_file(),
    reason="terraform and the offline providers are not installed",
)

PROVIDER = """
terraform {
  required_providers {
    google = { source = "hashicorp/google", version = "~> 8.0" }
  }
}
"""
JOB = """
resource "google_cloud_run_v2_job" "main" {
  name     = "x"
  project  = "my-project"
  location = "us-central1"
  %s
  template {
    template {
      containers {
        image = "x"
      }
    }
  }
  lifecycle {
    ignore_changes = [
      client, client_version, template[0].annotations, template[0].labels, template[0].template[0].containers[0].image,
    ]
  }
}
"""
SERVICE = """
resource "google_cloud_run_v2_service" "main" {
  name     = "x"
  project  = "my-project"
  location = "us-central1"
  template {
    containers {
      image = "x"
    }
  }
  lifecycle {
    ignore_changes = [%s]
  }
}
"""
IGNORED = [
    "client", "client_version", "traffic",
    "template[0].annotations", "template[0].labels", "template[0].containers[0].image",
]  # fmt: skip


def settled(folder, text: str) -> list[str]:
    (folder / "main.tf").write_text(PROVIDER + text)
    with check_terraform.providers() as variables:
        assert terraform(folder, ["init"], variables).returncode == 0
        return check_settled.settle(folder, "x", [], variables)


@needs_terraform
@pytest.mark.parametrize("token", ["", 'run_execution_token = "one"'])
def test_a_job_that_terraform_executes_never_settles(tmp_path, token):
    said = settled(tmp_path, JOB % token)
    assert len(said) == (2 if token else 0), said  # after the first apply and after the second
    assert all("run_execution_token" in text for text in said)


@needs_terraform
@pytest.mark.parametrize(
    "number", [None, 0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, len(IGNORED)))]
)
def test_a_service_whose_deployment_terraform_would_undo_never_settles(tmp_path, number):
    said = settled(tmp_path, SERVICE % ", ".join(name for i, name in enumerate(IGNORED) if i != number))
    assert len(said) == (0 if number is None else 2), said
    field = "" if number is None else re.sub(r".*\.", "", IGNORED[number])
    assert all(f" {field} " in text for text in said)


def test_what_is_used_keeps_what_nobody_changes(tmp_path):
    state = tmp_path / "x.tfstate"
    deployment = {"spec": [{"replicas": "1", "paused": False}]}
    other = {"name": "levserve"}
    state.write_text(json.dumps({"serial": 1, "resources": [
        {"type": "kubernetes_deployment_v1", "instances": [{"attributes": deployment}]},
        {"type": "kubernetes_service_v1", "instances": [{"attributes": other}]},
    ]}))  # fmt: skip
    check_settled.use(state)
    [scaled, same] = [resource["instances"][0]["attributes"] for resource in json.loads(state.read_text())["resources"]]
    assert scaled == {"spec": [{"replicas": "2", "paused": False}]}
    assert same == other
