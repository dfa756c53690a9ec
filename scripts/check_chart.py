"""Compare the workload of the Helm chart with Terraform's on GKE, field by field, so that the two cannot drift apart.

The chart is given what a plan was given: image, settings, resources, places. What both add themselves must be equal:
probes, lifecycle, security, volumes, rollout, tolerations, and every field of the pod that is not among the given ones.
"""

import re
from typing import Any

import yaml
from helm_python import Chart

from scripts.check_terraform import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "levserve"
# Blocks of Terraform that are lists of Kubernetes, by their names there.
LISTS = {
    "container": "containers",
    "env": "env",
    "port": "ports",
    "toleration": "tolerations",
    "volume": "volumes",
    "volume_mount": "volumeMounts",
}
# What a chart names in another way, since a release has its own accounts and more labels.
OWN = ("serviceAccountName", "imagePullSecrets")
SET_BY_CHART = ("DRAIN_SECONDS", "LOG_FORMAT", "LOCAL_MODEL_CACHE", "MODEL_STREAM", "MODEL_URI", "MODEL_NAME")


def check_chart(plans: dict[str, dict[str, Any]]) -> bool:
    """Compare the chart with every planned workload on GKE that it can have; return whether all are equal."""
    num_compared, failures = 0, list[str]()
    with Chart.load(CHART) as chart:
        for origin, plan in plans.items():
            for change in plan.get("resource_changes", ()):
                if change["type"] == "kubernetes_deployment_v1" and (after := change["change"].get("after")):
                    planned = of_terraform(after)
                    if (values := values_of(planned)) is not None:
                        num_compared += 1
                        failures += [f"{origin}: {text}" for text in differences(rendered(chart, values), planned)]
    print(f"chart: {num_compared} workloads of Terraform compared, {len(failures)} differences")
    print("".join(f"{failure}\n" for failure in failures), end="")
    return not failures


def of_terraform(block: Any) -> Any:
    """Return a block of the kubernetes provider as Kubernetes has it."""
    if isinstance(block, dict):
        found = {}
        for name, value in block.items():
            if value is None or value == []:
                continue
            if name in LISTS and isinstance(value, list):
                found[LISTS[name]] = [of_terraform(each) for each in value]
            else:
                found[re.sub(r"_(\w)", lambda match: match[1].upper(), name)] = of_terraform(value)
        return found
    if isinstance(block, list) and len(block) == 1 and (block[0] is None or isinstance(block[0], dict)):
        return of_terraform(block[0] or {})
    return [of_terraform(each) for each in block] if isinstance(block, list) else block


def values_of(planned: dict[str, Any]) -> dict[str, Any] | None:
    """Return the values of the chart for a planned workload; None if it has what the chart has not."""
    pod = planned["spec"]["template"]["spec"]
    [container] = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    if "MODEL_URI" not in (env := {entry["name"]: entry for entry in container["env"]}) or "keys" in volumes:
        return None
    plain = {name: entry["value"] for name, entry in env.items() if "value" in entry}
    requests = dict(container["resources"]["requests"])
    count = int(requests.pop("google.com/tpu"))
    cache = volumes.get("cache", {}).get("emptyDir")
    secrets = {name: entry["valueFrom"]["secretKeyRef"] for name, entry in env.items() if "valueFrom" in entry}
    probe = container["startupProbe"]
    return {
        "image": container["image"],
        "modelArtifacts": {"uri": plain["MODEL_URI"], "name": plain.get("MODEL_NAME", "")},
        "accelerator": {"type": "google-tpu", "count": count, "nodeSelector": pod["nodeSelector"]},
        "resources": {"requests": requests},
        "env": {name: value for name, value in plain.items() if name not in SET_BY_CHART},
        "secretEnv": secrets,
        "cache": {"type": "none"}
        if cache is None
        else {
            "type": "memory" if cache.get("medium") == "Memory" else "disk",
            "sizeGi": int(cache["sizeLimit"].removesuffix("Gi")),
        },
        "startupSeconds": probe["periodSeconds"] * probe["failureThreshold"],
        "drainSeconds": int(plain["DRAIN_SECONDS"]),
        "deregisterSeconds": int(container["lifecycle"]["preStop"]["exec"]["command"][1]),
        "runAsUser": int(container["securityContext"]["runAsUser"]),
    }


def rendered(chart: Chart, values: dict[str, Any]) -> dict[str, Any]:
    """Return the Deployment that the chart makes of values."""
    files = chart.render(values=values, name="levserve", namespace="levserve")
    [text] = [text for name, text in files.items() if name.endswith("/deployment.yaml")]
    return next(document for document in yaml.safe_load_all(text) if document["kind"] == "Deployment")


def differences(chart: dict[str, Any], planned: dict[str, Any]) -> list[str]:
    """Say what differs between the chart's Deployment and Terraform's, by the place of each field."""
    mine, other = flat(comparable(chart)), flat(comparable(planned))
    return [
        f"{place} is {mine.get(place)} in the chart, {other.get(place)} in Terraform"
        for place in sorted(mine.keys() | other.keys())
        if mine.get(place) != other.get(place)
    ]


def comparable(deployment: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared of a Deployment, lists of names as mappings."""
    spec = deployment["spec"]
    pod = {name: value for name, value in spec["template"]["spec"].items() if name not in OWN}
    for name in ("containers", "volumes"):
        pod[name] = {each["name"]: each for each in pod[name]}
    for container in pod["containers"].values():
        for name in ("env", "ports", "volumeMounts"):
            container[name] = {each["name"]: each for each in container.get(name, ())}
    return {
        "rollout": {name: spec[name] for name in ("progressDeadlineSeconds", "strategy")},
        "engine": spec["template"]["metadata"]["labels"]["llm-d.ai/engine-type"],
        "pod": pod,
    }


def flat(value: Any, place: str = "") -> dict[str, str]:
    """Return the leaves of a document by their places."""
    if isinstance(value, dict):
        pairs = [(f"{place}.{name}".lstrip("."), each) for name, each in value.items()]
    elif isinstance(value, list):
        pairs = [(f"{place}[{index}]", each) for index, each in enumerate(value)]
    else:
        return {place: str(value)}
    # A mapping without fields, such as emptyDir, is a field too.
    found = {place: "{}"} if not pairs else {}
    for at, each in pairs:
        found |= flat(each, at)
    return found
