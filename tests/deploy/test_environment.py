"""Every variable that Terraform, the documents and the examples set is a setting."""

import json
import re
from pathlib import Path

import pytest

from scripts.check_deployment import FENCE
from scripts.check_settings import environments, refusals
from service.settings import Settings

ROOT = Path(__file__).parents[2]
KNOWN = {name.upper() for name in Settings.model_fields}
SHARED = ROOT / "terraform" / "modules" / "settings" / "main.tf"
ENVIRONMENTS = sorted((ROOT / "terraform").glob("*/environment.tf"))
# Where people are told to set something: `--update-secrets=A=name:latest`, `--env A=b`, and a file of settings.
GCLOUD_VARIABLES = re.compile(r"--(?:set|update)-(?:env-vars|secrets)=\"?(\S+)")
SETTINGS_FILE = re.compile(r"^cat > settings\.yaml <<END\n(.*?)^END", re.MULTILINE | re.DOTALL)
OF_GOOGLE = {"GOOGLE_APPLICATION_CREDENTIALS"}  # Google's libraries read it, not we
DOCKER_VARIABLES = re.compile(r"(?:--env|-e)[ =]\"?([A-Z][A-Z0-9_]*)=")


def names_in_map(text: str, name: str) -> set[str]:
    """The keys of the HCL map that is assigned to `name`."""
    found = re.search(rf"^ *{name} *= *\{{(.*?)\}}$", text, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"\b([A-Z][A-Z0-9_]+) *=", re.sub(r"#.*", "", found[1]))) if found else set()


def test_both_platforms_say_their_environment():
    assert [path.parent.name for path in ENVIRONMENTS] == ["cloud_run_gpu", "gke_tpu"]


def test_every_variable_that_terraform_sets_is_a_setting():
    names = names_in_map(SHARED.read_text(), "settings_env")
    assert {"MODEL_URI", "BUNDLE_URI", "MAX_NUM_SEQS"} <= names
    assert names - KNOWN == set()


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.parent.name)
def test_terraform_sets_variables_in_one_place_only(path):
    assert 'source = "../modules/settings"' in path.read_text()
    for other in path.parent.glob("*.tf"):
        assert not re.search(r"^ *name *= *\"[A-Z][A-Z0-9_]+\"", other.read_text(), re.MULTILINE), other.name


def test_every_variable_of_an_example_is_a_setting():
    for path in (ROOT / "terraform").glob("*/examples/*.tfvars"):
        text = path.read_text()
        assert (names_in_map(text, "env") | names_in_map(text, "secret_env")) - KNOWN == set(), path.name


def test_every_variable_that_the_documents_and_the_build_set_is_a_setting():
    text = "\n".join(block for path in (ROOT / "docs").rglob("*.md") for block in FENCE.findall(path.read_text()))
    text += (ROOT / "cloudbuild.yaml").read_text() + (ROOT / ".github" / "workflows" / "smoke.yml").read_text()
    names = {pair.split("=")[0] for group in GCLOUD_VARIABLES.findall(text) for pair in group.split(",")}
    names |= set(DOCKER_VARIABLES.findall(text))
    for settings in SETTINGS_FILE.findall(text):
        names |= {line.split(":")[0] for line in settings.splitlines()}
    assert {"MODEL_URI", "MAX_NUM_SEQS", "API_KEY"} <= names
    assert names - KNOWN - OF_GOOGLE == set()


def test_an_environment_that_the_service_would_refuse_is_named():
    plan = json.loads((Path(__file__).parent / "plan_of_l4_8b.json").read_text())
    assert [address for address, _ in environments(plan)] == ["google_cloud_run_v2_service.main"]
    assert refusals({"l4_8b": plan}) == []
    [service] = [change for change in plan["resource_changes"] if change["type"] == "google_cloud_run_v2_service"]
    [container] = service["change"]["after"]["template"][0]["containers"]
    container["env"].append({"name": "GCS_BUCKET", "value": "my-project-models"})
    [refusal] = refusals({"l4_8b": plan})
    assert refusal.startswith("l4_8b: google_cloud_run_v2_service.main: MODEL_URI: contradicts GCS_BUCKET")


def test_a_catalogue_of_terraform_is_one_of_the_service():
    names = names_in_map(SHARED.read_text(), "settings_env")
    assert {"GCS_BUCKET", "GCS_MODEL_PREFIX", "MODELS_CONFIG", "MODELS", "MAX_CACHED_MODELS"} <= names
    settings = Settings(gcs_bucket="my-project-models", gcs_model_prefix="chat", models="my-8b", max_cached_models=2)
    assert (settings.has_catalogue, settings.catalogue_address) == (True, "gs://my-project-models/chat")
