"""Every journey of the documents, as printed, in a new project whose stand-ins refuse what does not exist yet."""

import re
import sys
from pathlib import Path

import pytest

from scripts.check_deployment import FENCE
from tests.deploy.conftest import Journey

ROOT = Path(__file__).parents[2]
# A journey is its pages in this order, in one shell.
JOURNEYS = {
    "quickstart": ["deploy.md"],
    "cloud_run": ["deploy/cloud_run.md"],
    "by_hand": ["deploy/cloud_run_by_hand.md"],
    "gke": ["deploy/gke.md"],
    "docker": ["deploy/docker.md"],
    "operations": ["deploy/cloud_run.md", "deploy/operations.md"],
    "terraform": ["deploy/cloud_run.md", "../terraform/README.md"],
}


def script_of(name: str) -> str:
    """The shell blocks of a journey's pages, as printed."""
    return "\n".join(block for page in JOURNEYS[name] for block in FENCE.findall((ROOT / "docs" / page).read_text()))


def test_every_page_with_commands_is_part_of_a_journey():
    others = [path for folder in ("docs", "examples", "terraform") for path in (ROOT / folder).rglob("*.md")]
    of_deployment = re.compile(r"^ *(?:eval .*)?(?:gcloud|terraform|kubectl) ", re.MULTILINE)
    pages = {
        page.resolve()
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *others]
        if any(of_deployment.search(block) for block in FENCE.findall(page.read_text()))
    }
    replayed = {(ROOT / "docs" / page).resolve() for pages in JOURNEYS.values() for page in pages}
    assert pages == replayed - {ROOT / "docs" / "deploy" / "docker.md"}  # of a host without Google Cloud


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_needs_nothing_that_no_earlier_step_made(travel, name):
    journey = travel(script_of(name))
    assert "REFUSED" not in journey.said
    assert journey.code == 0, journey.said


@pytest.mark.parametrize(
    ("name", "left_out", "refusal"),
    [
        ("by_hand", r"gcloud services enable .*\n", "not among the apis"),
        ("by_hand", r"gcloud iam service-accounts create levserve-prewarm\n", "not among the accounts"),
        ("by_hand", r"gcloud artifacts repositories create .*\n", "not among the repositories"),
        ("by_hand", r"gcloud compute networks subnets create .*\n", "no subnet"),
        ("by_hand", r"gcloud storage rsync .*\n", "no checkpoint"),
        ("by_hand", r"gcloud beta quotas .*\n", "quota of GPUs was not looked at"),
        ("by_hand", r".*--role=roles/run.developer\n", "lacks roles/run.developer"),
        ("by_hand", r".*--role=roles/storage.objectUser\n", "lacks roles/storage.objectUser"),
        ("cloud_run", r"gcloud auth login --update-adc\n", "adc is not among the logins"),
        ("cloud_run", r"terraform -chdir=terraform/foundation output -raw cloud_run_tfvars .*\n", "no value for"),
        ("cloud_run", r"eval .*build_command.*\n", "not among the images"),
        ("cloud_run", r"terraform -chdir=terraform/cloud_run_gpu init\n", "not among the initialized"),
        ("gke", r"gcloud compute regions describe .*\n", "quota of TPUs was not looked at"),
        ("gke", r"export KUBE_CTX=.*\n", "not among the contexts"),
        ("gke", r"gcloud components install .*\n", "not among the components"),
        ("docker", r"docker build --build-arg ACCELERATOR=cpu .*\n", "not among the images"),
    ],
)
def test_a_step_that_is_left_out_is_missed(travel, name, left_out, refusal):
    script, number = re.subn(left_out, "", script_of(name))
    assert number >= 1
    journey = travel(script)
    assert journey.code != 0
    assert refusal in journey.said


MODEL = {"PROJECT": "my-project", "MODEL": "my-8b"}
DEPLOY = "python -m scripts.deploy"


def deploy(travel, target: str, before: str = "gcloud auth login --update-adc", **variables: str) -> Journey:
    return travel(f"{before}\n{sys.executable} -m scripts.deploy {target}", **{**MODEL, **variables})


def test_a_model_is_on_cloud_run_after_two_commands(travel):
    journey = deploy(travel, "cloud-run")
    assert journey.code == 0, journey.said
    assert list(journey.state["services"]) == ["levserve"]
    order = [next(i for i, call in enumerate(journey.calls) if text in call) for text in (
        "gcloud beta quotas info list", "terraform -chdir=terraform/foundation apply", "gcloud storage rsync",
        "gcloud builds submit", "-target=google_cloud_run_v2_job.prewarm", "gcloud run jobs execute", "levserve smoke",
    )]  # fmt: skip
    assert order == sorted(order)
    assert "/v1/models" in journey.said.splitlines()[-2]


def test_every_command_is_printed_before_it_runs(travel):
    journey = deploy(travel, "cloud-run")
    for call in journey.calls[1:]:
        assert f"$ {call}" in journey.said.replace("'", ""), call


def test_a_model_is_on_a_tpu_after_two_commands(travel):
    journey = deploy(travel, "gke", TPU="v5e-1", ZONE="us-central1-a")
    assert journey.code == 0, journey.said
    assert journey.state["clusters"] == ["levserve"]
    assert journey.state["namespaces"] == ["levserve"]


def test_a_model_of_the_hub_is_imported_into_the_bucket(travel):
    journey = deploy(travel, "cloud-run", MODEL="hf://org/my-8b@v2")
    assert journey.code == 0, journey.said
    assert "levserve import hf://org/my-8b@v2 gs://my-project-models/my-8b" in journey.calls


def test_a_model_of_the_hub_is_imported_by_a_job_of_its_own(travel):
    journey = travel(script_of("cloud_run"))
    assert "qwen3-8b" in journey.state["buckets"]["my-project-models"]
    assert journey.state["jobs"]["levserve-import"]["account"].startswith("levserve-import@")


@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        ("--service-account=levserve-import@", "--service-account=levserve-serve@", "lacks roles/storage.objectUser"),
        (
            "--execute-now",
            "--network=levserve --vpc-egress=all-traffic --execute-now",
            "the subnet has no way to hf://",
        ),
    ],
)
def test_an_import_job_that_could_not_work_is_missed(travel, old, new, refusal):
    script = script_of("cloud_run")
    assert old in script
    journey = travel(script.replace(old, new))
    assert journey.code != 0
    assert refusal in journey.said


def test_a_deployment_can_be_repeated(travel):
    deploy(travel, "cloud-run")
    journey = deploy(travel, "cloud-run")
    assert journey.code == 0, journey.said


@pytest.mark.parametrize(("answer", "remains"), [("yes", False), ("no", True)])
def test_a_teardown_deletes_everything_and_data_only_on_a_clear_answer(travel, answer, remains):
    deploy(travel, "cloud-run")
    journey = deploy(travel, "teardown", DELETE_DATA=answer)
    assert journey.code == 0, journey.said
    assert journey.state["services"] == {}
    assert ("terraform -chdir=terraform/foundation destroy" in "\n".join(journey.calls)) is not remains


def test_a_value_that_is_missing_is_named(travel):
    journey = deploy(travel, "cloud-run", MODEL="")
    assert journey.code != 0
    assert "MODEL has no value" in journey.said
    assert not any("terraform" in call for call in journey.calls)


def test_a_folder_that_is_no_checkpoint_is_named(travel):
    journey = deploy(travel, "cloud-run", MODEL="terraform")
    assert journey.code != 0
    assert "config.json" in journey.said


def test_whatever_fails_stops_the_deployment(travel):
    journey = deploy(travel, "cloud-run", before="true")
    assert journey.code != 0
    assert "stopped: the last command failed" in journey.said
    assert not any("builds submit" in call for call in journey.calls)
