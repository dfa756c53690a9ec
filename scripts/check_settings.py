"""Check that the service would start with the environment of every plan: what Terraform names, the service reads."""

from collections.abc import Iterator
from typing import Any

from service.errors import SettingsError
from service.settings import Settings

type Block = dict[str, Any]


def refusals(plans: dict[str, Block]) -> list[str]:
    """Return a sentence for each planned environment that the service would refuse."""
    found = []
    for origin, plan in plans.items():
        for address, environment in environments(plan):
            try:
                Settings(**{name.lower(): value for name, value in environment.items()})  # type: ignore[arg-type]
            except (SettingsError, ValueError) as error:
                found.append(f"{origin}: {address}: {error}")
    return found


def environments(plan: Block) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the address of each service that a plan makes or changes, and its variables but for secrets."""
    for change in plan.get("resource_changes", []):
        after = change["change"]["after"]
        if after is None or change["mode"] != "managed":
            continue
        for container in containers(change["type"], after):
            if container["name"] == "levserve":
                values = {entry["name"]: entry.get("value") for entry in container["env"]}
                yield change["address"], {name: value for name, value in values.items() if value}


def containers(kind: str, after: Block) -> list[Block]:
    """Return the containers of a Cloud Run service or of a Deployment."""
    if kind == "google_cloud_run_v2_service":
        return after["template"][0]["containers"]
    if kind == "kubernetes_deployment_v1":
        return after["spec"][0]["template"][0]["spec"][0]["container"]
    return []
