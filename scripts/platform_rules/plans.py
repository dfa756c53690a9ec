"""Facts of a Terraform plan, as `terraform test -json -verbose` and `terraform show -json` print it."""

import ipaddress
from collections.abc import Iterator
from typing import Any

import yaml

from scripts.platform_rules.fact import Fact, gib, seconds

type Block = dict[str, Any]


class Planned(dict[str, Any]):
    """A planned block, in which an attribute that is known only after the apply is None."""

    def __missing__(self, name: str) -> None:
        """Return None: the plan leaves out what it does not know."""


def planned(value: Any) -> Any:
    """Return a planned value with every block in it as `Planned`."""
    if isinstance(value, dict):
        return Planned({name: planned(inner) for name, inner in value.items()})
    return [planned(inner) for inner in value] if isinstance(value, list) else value


def facts_of_plan(origin: str, plan: Block) -> Iterator[Fact]:
    """Yield what a plan asks of the platform."""
    resources = [
        (change["address"], change["type"], planned(change["change"]["after"]))
        for change in plan.get("resource_changes", [])
        if change["mode"] == "managed" and change["change"]["after"] is not None
    ]
    apis = {after["service"] for _, kind, after in resources if kind == "google_project_service"}
    if apis:
        yield Fact(kind="project", origin=origin, apis=apis)
    for address, kind, after in resources:
        for fact in FACTS.get(kind, nothing)(after):
            fact.origin = f"{origin}: {address}"
            yield fact


def nothing(_: Block) -> Iterator[Fact]:
    """Yield no fact: the rules say nothing about this resource."""
    yield from ()


def first(block: Block | None, *names: str) -> Any:
    """Follow nested blocks, of which Terraform makes lists; None where one is absent."""
    value: Any = block
    for name in names:
        value = value.get(name) if value else None
        value = value[0] if isinstance(value, list) and value else None if value == [] else value
    return value


def of_service(after: Block) -> Iterator[Fact]:
    """Yield the facts of a Cloud Run service."""
    template = first(after, "template")
    gpu = first(template, "node_selector", "accelerator")
    containers = template["containers"]
    limits = [first(container, "resources", "limits") or {} for container in containers]
    env = {entry["name"]: entry["value"] for container in containers for entry in container["env"]}
    yield Fact(
        kind="run_service",
        name=after["name"], region=after["location"], gpu=gpu, launch_stage=after["launch_stage"],
        cpu=sum(float(limit["cpu"]) for limit in limits), memory_gib=sum(gib(limit["memory"]) or 0 for limit in limits),
        gpus=[limit["nvidia.com/gpu"] for limit in limits if "nvidia.com/gpu" in limit],
        is_cpu_always_allocated=all(first(c, "resources", "cpu_idle") is False for c in containers),
        is_gen2=template["execution_environment"] == "EXECUTION_ENVIRONMENT_GEN2",
        is_zonal_redundant=gpu is not None and not template["gpu_zonal_redundancy_disabled"],
        concurrency=template["max_instance_request_concurrency"], timeout_s=seconds(template["timeout"]),
        min_instances=first(after, "scaling", "min_instance_count") or 0,
        max_instances=first(template, "scaling", "max_instance_count"),
        has_vpc=template["vpc_access"] != [], egress=first(template, "vpc_access", "egress"),
        num_containers=len(containers), num_ports=sum(c["ports"] != [] for c in containers),
        drain_s=seconds(env.get("DRAIN_SECONDS")), request_timeout_s=seconds(env.get("REQUEST_TIMEOUT")),
        create_timeout_s=seconds((after["timeouts"] or {}).get("create")),
        has_service_account=bool(template["service_account"]),
    )  # fmt: skip
    yield from of_containers("service", gpu, containers)
    for volume in template["volumes"]:
        if disk := first(volume, "empty_dir"):
            yield Fact(
                kind="run_volume", medium=disk["medium"], size_gib=gib(disk["size_limit"]),
                launch_stage=after["launch_stage"], memory_gib=max(gib(limit["memory"]) or 0 for limit in limits),
            )  # fmt: skip
    for container in containers:
        for kind in ("startup_probe", "liveness_probe"):
            if probe := first(container, kind):
                yield Fact(
                    kind="run_probe", of=kind, has_gpu=gpu is not None, period_s=probe["period_seconds"],
                    timeout_s=probe["timeout_seconds"], failures=probe["failure_threshold"],
                    initial_delay_s=probe["initial_delay_seconds"] or 0, path=first(probe, "http_get", "path"),
                )  # fmt: skip


def of_job(after: Block) -> Iterator[Fact]:
    """Yield the facts of a Cloud Run job."""
    outer = first(after, "template")
    template = first(outer, "template")
    gpu = first(template, "node_selector", "accelerator")
    yield Fact(
        kind="run_job", name=after["name"], gpu=gpu, timeout_s=seconds(template["timeout"]),
        num_tasks=outer["task_count"], max_retries=template["max_retries"],
        is_executed_by_terraform=bool(after["run_execution_token"] or after["start_execution_token"]),
        is_zonal_redundant=gpu is not None and not template["gpu_zonal_redundancy_disabled"],
    )  # fmt: skip
    yield from of_containers("job", gpu, template["containers"])


def of_containers(of: str, gpu: str | None, containers: list[Block]) -> Iterator[Fact]:
    """Yield the shape and the environment of each container."""
    for container in containers:
        limits = first(container, "resources", "limits") or {}
        yield Fact(
            kind="run_container", of=of, gpu=gpu if "nvidia.com/gpu" in limits else None,
            cpu=float(limits["cpu"]), memory_gib=gib(limits["memory"]),
            num_gpus=int(limits.get("nvidia.com/gpu", 0)),
        )  # fmt: skip
        names = [entry["name"] for entry in container["env"]]
        values = [entry["value"] or "" for entry in container["env"]]
        yield Fact(kind="run_env", names=names, longest=max(map(len, values), default=0))
        yield Fact(kind="image", name=container["image"], of="run")


def of_node_pool(after: Block) -> Iterator[Fact]:
    """Yield the facts of a node pool."""
    config = first(after, "node_config")
    scaling = first(after, "autoscaling") or {}
    yield Fact(
        kind="node_pool", name=after["name"], machine=config["machine_type"], is_spot=bool(config["spot"]),
        is_flex_start=bool(config["flex_start"]), max_run_s=seconds(config["max_run_duration"]),
        reservation=first(config, "reservation_affinity", "consume_reservation_type"),
        reservation_key=first(config, "reservation_affinity", "key"),
        has_placement=after["placement_policy"] != [], is_repaired=first(after, "management", "auto_repair"),
        streams_images=bool(first(config, "gcfs_config", "enabled")), disk_gib=config["disk_size_gb"],
        metadata_mode=first(config, "workload_metadata_config", "mode"), zones=after["node_locations"],
        has_both_limits=scaling.get("max_node_count") is not None and scaling.get("total_max_node_count") is not None,
        surge=first(after, "upgrade_settings", "max_surge"), scopes=config["oauth_scopes"],
        unavailable=first(after, "upgrade_settings", "max_unavailable"),
    )  # fmt: skip


def of_pod(owner: str, template: Block) -> Iterator[Fact]:
    """Yield the facts of a pod template."""
    spec = first(template, "spec")
    container = first(spec, "container")
    resources = first(container, "resources")
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    sleep = first(container, "lifecycle", "pre_stop", "exec") or {}
    selector = spec["node_selector"] or {}
    yield Fact(
        kind="tpu_pod", of=owner, requests=resources["requests"], limits=resources["limits"],
        accelerator=selector.get("cloud.google.com/gke-tpu-accelerator"),
        topology=selector.get("cloud.google.com/gke-tpu-topology"),
        tolerations=[toleration["key"] for toleration in spec["toleration"]],
        grace_s=spec["termination_grace_period_seconds"], user=first(container, "security_context", "run_as_user"),
        pre_stop_s=float((sleep.get("command") or ["", 0])[-1]), drain_s=seconds(env.get("DRAIN_SECONDS")),
        request_timeout_s=seconds(env.get("REQUEST_TIMEOUT")), restart_policy=spec["restart_policy"],
    )  # fmt: skip
    yield Fact(kind="image", name=container["image"], of="gke")
    for kind in ("startup_probe", "readiness_probe", "liveness_probe"):
        if probe := first(container, kind):
            yield Fact(
                kind="kube_probe", of=kind, period_s=probe["period_seconds"], timeout_s=probe["timeout_seconds"],
                failures=probe["failure_threshold"], successes=probe["success_threshold"],
            )  # fmt: skip


def of_deployment(after: Block) -> Iterator[Fact]:
    """Yield the facts of a Deployment."""
    spec = first(after, "spec")
    update = first(spec, "strategy", "rolling_update") or {}
    probe = first(spec, "template", "spec", "container", "startup_probe")
    yield Fact(
        kind="deployment", surge=update.get("max_surge"), unavailable=update.get("max_unavailable"),
        selector=first(spec, "selector", "match_labels"), labels=first(spec, "template", "metadata", "labels"),
        progress_s=spec["progress_deadline_seconds"],
        start_s=probe["period_seconds"] * probe["failure_threshold"],
    )  # fmt: skip
    yield from of_pod("deployment", first(spec, "template"))


def of_kubernetes_job(after: Block) -> Iterator[Fact]:
    """Yield the facts of a Kubernetes Job."""
    yield from of_pod("job", first(after, "spec", "template"))


def of_autoscaler(after: Block) -> Iterator[Fact]:
    """Yield the facts of a horizontal pod autoscaler."""
    spec = first(after, "spec")
    yield Fact(
        kind="autoscaler", min=spec["min_replicas"], max=spec["max_replicas"],
        metrics=[first(metric, "pods", "metric", "name") for metric in spec["metric"]],
    )  # fmt: skip


def of_cluster(after: Block) -> Iterator[Fact]:
    """Yield the facts of a cluster."""
    window = first(after, "maintenance_policy", "recurring_window")
    yield Fact(
        kind="cluster", name=after["name"], window=window,
        is_vpc_native=after["networking_mode"] == "VPC_NATIVE",
        workload_pool=first(after, "workload_identity_config", "workload_pool"), project=after["project"],
        has_private_nodes=first(after, "private_cluster_config", "enable_private_nodes"),
        has_ip_endpoint=first(after, "control_plane_endpoints_config", "ip_endpoints_config", "enabled"),
        has_dns_endpoint=first(
            after, "control_plane_endpoints_config", "dns_endpoint_config", "allow_external_traffic"
        ),
        has_gateway_api=first(after, "gateway_api_config", "channel") == "CHANNEL_STANDARD",
        keeps_default_pool=not after["remove_default_node_pool"], initial_nodes=after["initial_node_count"],
    )  # fmt: skip


def of_manifests(after: Block) -> Iterator[Fact]:
    """Yield the facts of the custom resources that the chart applies."""
    for manifest in yaml.safe_load(after["values"][0])["manifests"]:
        spec = manifest.get("spec", {})
        match manifest["kind"]:
            case "GCPBackendPolicy":
                default = spec["default"]
                yield Fact(
                    kind="backend", timeout_s=default["timeoutSec"],
                    draining_s=default["connectionDraining"]["drainingTimeoutSec"],
                )  # fmt: skip
            case "HealthCheckPolicy":
                default = spec["default"]
                yield Fact(kind="health_check", period_s=default["checkIntervalSec"], timeout_s=default["timeoutSec"])
            case "Gateway":
                yield Fact(
                    kind="gateway", gateway_class=spec["gatewayClassName"],
                    protocol=spec["listeners"][0]["protocol"],
                    certificate_map=manifest["metadata"].get("annotations", {}).get("networking.gke.io/certmap"),
                )  # fmt: skip
            case "PodMonitoring":
                yield Fact(kind="scrape", period_s=seconds(spec["endpoints"][0]["interval"]))


def of_subnet(after: Block) -> Iterator[Fact]:
    """Yield the facts of a subnet."""
    yield Fact(
        kind="subnet", prefix=ipaddress.ip_network(after["ip_cidr_range"]).prefixlen, purpose=after["purpose"],
        has_private_access=bool(after["private_ip_google_access"]),
    )  # fmt: skip


def of_bucket(after: Block) -> Iterator[Fact]:
    """Yield the facts of a bucket."""
    yield Fact(
        kind="bucket", name=after["name"], region=after["location"],
        is_private=after["public_access_prevention"] == "enforced" and after["uniform_bucket_level_access"],
    )  # fmt: skip


def of_alert(after: Block) -> Iterator[Fact]:
    """Yield the facts of an alert policy."""
    condition = first(after, "conditions", "condition_prometheus_query_language")
    yield Fact(
        kind="alert", wait_s=seconds(condition["duration"]), every_s=seconds(condition["evaluation_interval"]),
        close_s=seconds(first(after, "alert_strategy", "auto_close")), severity=after["severity"],
    )  # fmt: skip


FACTS = {
    "google_cloud_run_v2_service": of_service,
    "google_cloud_run_v2_job": of_job,
    "google_container_node_pool": of_node_pool,
    "google_container_cluster": of_cluster,
    "google_compute_subnetwork": of_subnet,
    "google_storage_bucket": of_bucket,
    "google_monitoring_alert_policy": of_alert,
    "google_service_account": lambda after: iter([Fact(kind="service_account", name=after["account_id"])]),
    "google_artifact_registry_repository": lambda after: iter([Fact(kind="repository", name=after["repository_id"])]),
    "google_logging_metric": lambda after: iter([Fact(
        kind="log_metric", name=after["name"], value_type=first(after, "metric_descriptor", "value_type"),
        has_buckets=after["bucket_options"] != [], unit=first(after, "metric_descriptor", "unit"),
    )]),
    "google_monitoring_uptime_check_config": lambda after: iter([Fact(
        kind="uptime_check", period_s=seconds(after["period"]), timeout_s=seconds(after["timeout"]),
    )]),
    "google_monitoring_dashboard": lambda after: iter([Fact(
        kind="dashboard", tiles=yaml.safe_load(after["dashboard_json"])["mosaicLayout"]["tiles"],
    )] if after["dashboard_json"] else []),
    "kubernetes_deployment_v1": of_deployment,
    "kubernetes_job_v1": of_kubernetes_job,
    "kubernetes_horizontal_pod_autoscaler_v2": of_autoscaler,
    "helm_release": of_manifests,
}  # fmt: skip
