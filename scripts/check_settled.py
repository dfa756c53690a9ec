"""Check that a plan after an apply is empty: at once, after a deployment, and after a second apply.

gcloud, Cloud Build and the autoscaler change what Terraform made. Each of their changes is written into the state as
the provider would read it back, so that a change that Terraform would undo, or that it sees for ever, fails here.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.terraform import terraform

type Block = dict[str, Any]

OF_GCLOUD = {"client": "gcloud", "client_version": "528.0.0"}
USER_IMAGE = {"client.knative.dev/user-image": "us-central1-docker.pkg.dev/my-project/levserve/levserve-cuda12:next"}
NONCE = {"client.knative.dev/nonce": "abcdefghij"}  # with which gcloud makes a new revision of the same template


def settle(folder: Path, title: str, flags: list[str], variables: dict[str, str]) -> list[str]:
    """Apply an example with made-up identities, twice, and return what a later plan would change."""
    state = folder / f"{title.replace('/', '_')}.tfstate"
    # The variables that the example's test has in common with a real apply, which takes them from the foundation.
    shared = folder / "shared.tfvars"
    tests = folder / "examples" / "examples.tftest.hcl"
    shared.write_text(shared_variables(tests.read_text()) if tests.is_file() else "")
    flags = [f"-var-file={shared}", *flags, f"-state={state}", "-input=false"]
    said = []
    for number in ("first", "second"):
        applied = terraform(folder, ["apply", "-auto-approve", *flags], variables)
        if applied.returncode:
            return [*said, f"{title}: the {number} apply: {applied.stdout}{applied.stderr}"]
        use(state)
        planned = terraform(folder, ["plan", "-detailed-exitcode", *flags], variables)
        if planned.returncode:
            said.append(
                f"{title}: a plan after the {number} apply changes something:\n{planned.stdout}{planned.stderr}"
            )
    return said


def shared_variables(test: str) -> str:
    """Return the assignments of the first `variables` block of a test file."""
    return test.partition("\nvariables {\n")[2].partition("\n}")[0] + "\n"


def use(state: Path) -> None:
    """Change a state as deployments, executions of jobs and the autoscaler do."""
    document = json.loads(state.read_text())
    for resource in document["resources"]:
        for instance in resource["instances"]:
            USES.get(resource["type"], lambda _: None)(instance["attributes"])
    document["serial"] += 1
    state.write_text(json.dumps(document))


def deploy_service(service: Block) -> None:
    """Deploy an image and move traffic, as a build does.

    Source: of the fields that gcloud changes, https://github.com/hashicorp/terraform-provider-google/issues/13410
    """
    [template] = service["template"]
    service |= OF_GCLOUD
    service["traffic"] = [
        {
            "type": "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION",
            "revision": "levserve-00002-abc",
            "percent": 100,
            "tag": tag,
        }
        for tag in ("candidate", "stable")
    ]
    template["labels"], template["annotations"] = NONCE, USER_IMAGE
    template["containers"][0]["image"] = USER_IMAGE["client.knative.dev/user-image"]


def execute_job(job: Block) -> None:
    """Give a job another image and execute it, upon which the API drops what names an earlier execution.

    Source: https://github.com/GoogleCloudPlatform/magic-modules/pull/19060
    """
    [outer] = job["template"]
    [template] = outer["template"]
    job |= OF_GCLOUD | {"run_execution_token": None, "start_execution_token": None}
    outer["labels"], outer["annotations"] = NONCE, USER_IMAGE
    template["containers"][0]["image"] = USER_IMAGE["client.knative.dev/user-image"]


def scale_deployment(deployment: Block) -> None:
    """Add a replica, as the autoscaler does."""
    [spec] = deployment["spec"]
    spec["replicas"] = str(int(spec["replicas"] or 1) + 1)


USES: dict[str, Callable[[Block], None]] = {
    "google_cloud_run_v2_service": deploy_service,
    "google_cloud_run_v2_job": execute_job,
    "kubernetes_deployment_v1": scale_deployment,
}
