"""Deployment in one command: which commands run, in which order, and when it stops.

The commands of the cloud are replaced by one that records its arguments and succeeds; what the cloud would answer is
not imitated. The documents' commands themselves are checked by gcloud's own parser (`scripts/check_deployment.py`).
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.check_deployment import FENCE

ROOT = Path(__file__).parents[2]
COMMANDS = ("gcloud", "terraform", "kubectl", "levserve")
RECORDER = """#!/bin/sh
call="$(basename "$0") $*"
echo "$call" >> "$CALLS"
case "$call" in
  *"$FAILING"*) exit 1 ;;
  *"output -json"*) echo '{"a": 1}' ;;
  *"output -raw"*) echo "levserve $(printf %s "$*" | tr ' ' '\\n' | tail -n 1)" ;;
  *"config get account"*) echo "${ACCOUNT:-me@example.com}" ;;
  *"config get"*) echo my-project ;;
  "gcloud version"*) printf '{"Google Cloud SDK": "%s"}' "${GCLOUD_VERSION:-528.0.0}" ;;
  "terraform version"*) printf '{"terraform_version": "%s"}' "${TERRAFORM_VERSION:-1.11.4}" ;;
  *"billing projects describe"*) echo billingAccounts/0A-1B ;;
esac
"""


@pytest.fixture
def deploy(tmp_path):
    """Deploy from a copy of the repository; return the exit code, what was printed, and the recorded commands."""
    clone, commands = tmp_path / "clone", tmp_path / "bin"
    for name in ("scripts", "terraform"):
        shutil.copytree(
            ROOT / name, clone / name, ignore=shutil.ignore_patterns(".terraform", "*.tfvars", "*.tfstate*")
        )
    (clone / "my-8b").mkdir()
    (clone / "my-8b" / "config.json").write_text("{}")
    commands.mkdir()
    for name in COMMANDS:
        (commands / name).write_text(RECORDER)
        (commands / name).chmod(0o755)
    calls = tmp_path / "calls"

    def run(target: str, failing: str = "no such command", **variables: str) -> tuple[int, str, list[str]]:
        calls.write_text("")
        environment = {"PATH": f"{commands}:/usr/bin:/bin", "HOME": str(tmp_path), "YES": "1", "CALLS": str(calls)}
        done = subprocess.run(
            [sys.executable, "-m", "scripts.deploy", target],
            cwd=clone,
            env={**environment, "PROJECT": "my-project", "MODEL": "my-8b", "FAILING": failing, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr, calls.read_text().splitlines()

    return run


def are_in_order(calls: list[str], *parts: str) -> bool:
    """Return whether the first commands with these parts exist and are in this order."""
    order = [next(i for i, call in enumerate(calls) if part in call) for part in parts]
    return order == sorted(order)


def test_a_model_goes_to_cloud_run_after_its_bundle_is_made_and_the_quota_was_read(deploy):
    code, said, calls = deploy("cloud-run")
    assert code == 0, said
    assert are_in_order(
        calls,
        *("gcloud services enable", "gcloud beta quotas info list", "-chdir=terraform/foundation apply"),
        *("gcloud storage rsync my-8b gs://my-project-models/my-8b", "output -raw build_command"),
        *("apply -target=google_cloud_run_v2_job.prewarm", "levserve prewarm_command", "levserve smoke_command"),
    )
    assert said.rstrip().endswith("/v1/models")


def test_a_model_goes_to_a_tpu_after_its_cluster(deploy):
    code, said, calls = deploy("gke", TPU="v5e-1", ZONE="us-central1-a")
    assert code == 0, said
    assert are_in_order(
        calls,
        *("compute regions describe us-central1", "-chdir=terraform/foundation apply", "apply -target=terraform_data"),
        *("-chdir=terraform/gke_cluster apply", "levserve credentials_command", "-chdir=terraform/gke_tpu apply -auto"),
        "output -raw smoke_command",
    )


def test_every_command_is_printed_before_it_runs(deploy):
    _, said, calls = deploy("cloud-run")
    for call in calls:
        assert f"$ {call}" in said.replace("'", ""), call


def test_a_model_of_the_hub_is_imported_into_the_bucket(deploy):
    _, _, calls = deploy("cloud-run", MODEL="hf://org/my-8b@v2")
    assert "levserve import hf://org/my-8b@v2 gs://my-project-models/my-8b" in calls


@pytest.mark.parametrize(
    "failing", ["foundation apply", "storage rsync", "levserve build_command", "levserve smoke_command"]
)
def test_whatever_fails_stops_the_deployment(deploy, failing):
    code, said, calls = deploy("cloud-run", failing=failing)
    assert code != 0
    assert "stopped: the last command failed" in said
    assert failing in calls[-1]


def test_a_value_that_is_missing_is_named_before_anything_is_made(deploy):
    code, said, calls = deploy("cloud-run", MODEL="")
    assert code != 0
    assert "MODEL has no value" in said
    assert not any(call.startswith("terraform -chdir") for call in calls)


WRONG = [
    {"MODEL": "terraform"},
    {"MODEL": "hf://org"},
    {"MODEL": "gs:/bucket/x"},
    {"GPU": "l5"},
    {"GPU": "nvidia-14"},
    {"REGION": "us-central1-a"},
    {"PROJECT": "My Project"},
    {"MODEL_BUCKET": "gs://my-bucket"},
    {"MODEL_BUCKET": "same", "BUNDLE_BUCKET": "same"},
    {"ALERT_EMAIL": "me"},
    {"MONTHLY_BUDGET": "100 EUR"},
    {"TERRAFORM_VERSION": "1.10.5"},
    {"GCLOUD_VERSION": "400.0.0"},
]
WRONG_TPU = [{"TPU": "v7"}, {"TPU": "v5e-2"}, {"ZONE": "us-east1-a"}, {"ZONE": "a"}, {"CAPACITY": "on demand"}]


@pytest.mark.parametrize(
    ("target", "given"), [*(("cloud-run", given) for given in WRONG), *(("gke", given) for given in WRONG_TPU)]
)
def test_a_typo_is_one_line_before_anything_is_made(deploy, target, given):
    code, said, calls = deploy(target, **given)
    [line] = [line for line in said.splitlines() if not line.startswith("$ ")]
    assert code == 1
    assert line.endswith("Nothing was made.")
    made = ("services enable", " apply", " init", "rsync", "import", "submit")
    assert [call for call in calls if any(part in call for part in made)] == []


def test_a_tool_that_is_missing_is_one_line(deploy, tmp_path):
    (tmp_path / "bin" / "terraform").unlink()
    code, said, calls = deploy("cloud-run")
    assert (code, calls) == (1, ["gcloud version --format=json"])
    assert said.splitlines()[-1].startswith("terraform is not installed: https://")


def test_short_names_a_service_account_and_chosen_buckets(deploy, tmp_path):
    account = "ci@my-project.iam.gserviceaccount.com"
    chosen = {"MODEL_BUCKET": "mine", "ALERT_EMAIL": "ops@example.com", "MONTHLY_BUDGET": "300"}
    code, said, calls = deploy("cloud-run", GPU="rtx", MODEL="org/name", ACCOUNT=account, **chosen)
    assert code == 0, said
    assert "levserve import hf://org/name gs://mine/name" in calls
    written = (tmp_path / "clone/terraform/cloud_run_gpu/deploy.auto.tfvars").read_text()
    assert 'gpu_type      = "nvidia-rtx-pro-6000"' in written
    assert f'invokers      = ["serviceAccount:{account}"]' in written
    foundation = (tmp_path / "clone/terraform/foundation/deploy.auto.tfvars").read_text()
    assert 'model_bucket_name  = "mine"' in foundation
    assert 'billing_account    = "0A-1B"\nmonthly_budget     = 300' in foundation
    assert "about 3.20 USD for each hour" in said
    code, said, _ = deploy("cloud-run", GPU="l4", MODEL="org/name")
    kept = (tmp_path / "clone/terraform/cloud_run_gpu/deploy.auto.tfvars.before").read_text()
    assert (code, kept) == (0, written)


def test_a_pause_scales_down_and_deletes_nothing(deploy):
    code, said, calls = deploy("pause")
    assert code == 0, said
    assert are_in_order(calls, "cloud_run_gpu apply -var=min_instances=0", "scale deployment --all --replicas=0")
    assert not any(" destroy" in call for call in calls)


def test_a_folder_that_is_no_checkpoint_is_named(deploy):
    code, said, _ = deploy("cloud-run", MODEL="terraform")
    assert code != 0
    assert "config.json" in said


@pytest.mark.parametrize(("answer", "remains"), [("yes", False), ("no", True)])
def test_a_teardown_deletes_everything_and_data_only_on_a_clear_answer(deploy, answer, remains):
    code, said, calls = deploy("teardown", DELETE_DATA=answer)
    assert code == 0, said
    destroyed = [re.findall(r"terraform/(\w+) destroy", call)[0] for call in calls if " destroy" in call]
    assert destroyed == ["cloud_run_gpu", "gke_tpu", "gke_cluster", *([] if remains else ["foundation"])]


def test_the_quickstart_has_as_many_commands_as_its_headings_say():
    numbers = {"one": 1, "two": 2, "three": 3, "four": 4}
    text = (ROOT / "docs" / "deploy.md").read_text()
    sections = [part for part in re.split(r"^## ", text, flags=re.MULTILINE) if re.match(r".*: \w+ commands?\n", part)]
    assert len(sections) >= 2
    for section in sections:
        script = re.sub(r" *\\\n\s*", " ", "\n".join(FENCE.findall(section)))
        lines = [line for line in script.splitlines() if line.strip() and not line.startswith("#")]
        last = next(i for i, line in enumerate(lines, 1) if line.startswith(("gcloud run deploy", "make deploy-")))
        commands = [command for line in lines[:last] for command in re.split(r" *(?:&&|;) *", line)]
        [number] = re.findall(r": (\w+) commands?$", section.partition("\n")[0])
        assert len(commands) == numbers[number], commands
