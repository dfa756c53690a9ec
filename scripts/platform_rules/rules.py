"""The platform's documented rules, each with its source and something that breaks it.

A rule is about one kind of fact. `holds` reads the fact's fields; a field that is not known, for example before an apply,
is None. `broken` are the fields that a test changes in a sound fact to see that the rule notices.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scripts.platform_rules.fact import Fact

RUN = "https://docs.cloud.google.com/run"
RUN_CPU = f"{RUN}/docs/configuring/services/cpu"
RUN_MEMORY = f"{RUN}/docs/configuring/services/memory-limits"
RUN_GPU = f"{RUN}/docs/configuring/services/gpu"
RUN_QUOTAS = f"{RUN}/quotas"
RUN_HEALTH = f"{RUN}/docs/configuring/healthchecks"
RUN_CONTRACT = f"{RUN}/docs/container-contract"
RUN_DISK = f"{RUN}/docs/configuring/services/ephemeral-disk"
RUN_VPC = f"{RUN}/docs/configuring/vpc-direct-vpc"
RUN_JOBS = f"{RUN}/docs/configuring/task-timeout"
RUN_API = f"{RUN}/docs/reference/rest/v2/projects.locations.services"
GKE = "https://docs.cloud.google.com/kubernetes-engine"
GKE_TPUS = f"{GKE}/docs/concepts/plan-tpus"
GKE_NEG = "https://cloud.google.com/knowledge/kb/502-503-errors-on-external-http-s-load-balancer-000006416"
GKE_SPOT = f"{GKE}/docs/concepts/spot-vms"
GKE_WINDOWS = f"{GKE}/docs/concepts/maintenance-windows-and-exclusions"
GKE_GATEWAY = f"{GKE}/docs/how-to/configure-gateway-resources"
GKE_STREAMING = f"{GKE}/docs/how-to/image-streaming"
KUBERNETES = "https://kubernetes.io/docs"
KUBE_API = f"{KUBERNETES}/reference/kubernetes-api/workload-resources"
BUILD = "https://docs.cloud.google.com/build/docs"
BUILD_CONFIG = f"{BUILD}/build-config-file-schema"
MONITORING = "https://docs.cloud.google.com/monitoring/api/ref_v3/rest/v3"
TERRAFORM_GKE = "https://github.com/GoogleCloudPlatform/magic-modules/pull/10153"

type Check = Callable[[Fact], Any]

# GiB that a container may have, by its vCPUs. Source: RUN_CPU, table "vCPU and memory".
MEMORY_GIB = {1: (0.5, 4), 2: (0.5, 8), 4: (2, 16), 6: (4, 24), 8: (4, 32)}
L4, RTX = "nvidia-l4", "nvidia-rtx-pro-6000"
REGIONS = {
    L4: {"asia-south1", "asia-southeast1", "europe-west1", "europe-west4", "us-central1", "us-east4"},
    RTX: {"asia-south2", "asia-southeast1", "europe-west4", "us-central1"},
}
# Chips of a machine, and the topologies that one machine forms. Source: GKE_TPUS.
TPUS = {
    "ct5lp-hightpu-1t": (1, "tpu-v5-lite-podslice", {"1x1"}),
    "ct5lp-hightpu-4t": (4, "tpu-v5-lite-podslice", {"2x2"}),
    "ct5lp-hightpu-8t": (8, "tpu-v5-lite-podslice", {"2x4"}),
    "ct6e-standard-1t": (1, "tpu-v6e-slice", {"1x1"}),
    "ct6e-standard-4t": (4, "tpu-v6e-slice", {"2x2"}),
    "ct6e-standard-8t": (8, "tpu-v6e-slice", {"2x4"}),
    "tpu7x-standard-4t": (4, "tpu7x", {"2x2x1"}),
}
SLICES = {(accelerator, topology): chips for chips, accelerator, ways in TPUS.values() for topology in ways}
RESERVED_NAMES = {"PORT", "K_SERVICE", "K_REVISION", "K_CONFIGURATION"}
MACHINES = {
    "UNSPECIFIED",
    "N1_HIGHCPU_8",
    "N1_HIGHCPU_32",
    "E2_HIGHCPU_8",
    "E2_HIGHCPU_32",
    "E2_MEDIUM",
    "E2_STANDARD_2",
}
# The API of each feature that the roots use.
APIS = {
    "run", "container", "containerfilesystem", "certificatemanager", "artifactregistry", "cloudbuild", "compute",
    "iam", "iamcredentials", "logging", "monitoring", "secretmanager", "storage", "cloudresourcemanager",
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """One rule of the platform."""

    name: str
    about: str  # the kind of fact
    says: str
    source: str
    holds: Check
    broken: dict[str, Any]


def product(*factors: float | None) -> float | None:
    """Return the product, or None if a factor is not known."""
    total = 1.0
    for factor in factors:
        if factor is None:
            return None
        total *= factor
    return total


def at_most(value: float | None, limit: float) -> bool:
    """Return whether a value is at most the limit, or not known."""
    return value is None or value <= limit


def is_name(text: str | None, pattern: str) -> bool:
    """Return whether a name has a form, or is not known."""
    return text in (None, "x") or re.fullmatch(pattern, text) is not None


RULES = (
    # Cloud Run: shapes
    Rule("cpu-values", "run_container", "A container has 1, 2, 4, 6 or 8 vCPU; only an RTX PRO 6000 has more.", RUN_CPU,
         lambda f: f.cpu is None or f.gpu == RTX or f.cpu in MEMORY_GIB, {"cpu": 5}),
    Rule("memory-by-cpu", "run_container", "Memory is at most 4 GiB with 1 vCPU, 8 with 2, 16 with 4, 24 with 6, 32 with 8.", RUN_CPU,
         lambda f: f.gpu == RTX or at_most(f.memory_gib, MEMORY_GIB.get(f.cpu, (0, 32))[1]), {"cpu": 6, "memory_gib": 30}),
    Rule("memory-minimum-by-cpu", "run_container", "4 vCPU need at least 2 GiB, 6 and 8 at least 4.", RUN_CPU,
         lambda f: f.gpu == RTX or f.memory_gib is None or f.memory_gib >= MEMORY_GIB.get(f.cpu, (0.5, 0))[0],
         {"cpu": 8, "memory_gib": 2}),
    Rule("gen2-memory", "run_container", "The second generation needs at least 512 MiB.", RUN_MEMORY,
         lambda f: f.memory_gib is None or f.memory_gib >= 0.5, {"cpu": 1, "memory_gib": 0.25}),
    Rule("l4-cpu", "run_container", "An L4 needs at least 4 vCPU.", RUN_GPU,
         lambda f: f.gpu != L4 or f.cpu is None or f.cpu >= 4, {"gpu": L4, "cpu": 2, "memory_gib": 8}),
    Rule("l4-memory", "run_container", "An L4 needs at least 16 GiB.", RUN_GPU,
         lambda f: f.gpu != L4 or f.memory_gib is None or f.memory_gib >= 16, {"gpu": L4, "cpu": 4, "memory_gib": 8}),
    Rule("rtx-cpu", "run_container", "An RTX PRO 6000 needs at least 20 vCPU.", RUN_GPU,
         lambda f: f.gpu != RTX or f.cpu is None or f.cpu >= 20, {"gpu": RTX, "cpu": 8, "memory_gib": 80}),
    Rule("rtx-memory", "run_container", "An RTX PRO 6000 needs at least 80 GiB.", RUN_GPU,
         lambda f: f.gpu != RTX or f.memory_gib is None or f.memory_gib >= 80, {"gpu": RTX, "cpu": 20, "memory_gib": 64}),
    Rule("one-gpu", "run_container", "A container has one GPU or none.", RUN_GPU,
         lambda f: f.num_gpus in (0, 1), {"num_gpus": 2}),
    Rule("gpu-types", "run_container", "The GPUs are nvidia-l4 and nvidia-rtx-pro-6000.", RUN_GPU,
         lambda f: f.gpu in (None, "x", L4, RTX), {"gpu": "nvidia-h100"}),
    Rule("instance-cpu", "run_service", "All containers of an instance have at most 8 vCPU together, except with an RTX PRO 6000.",
         RUN_QUOTAS, lambda f: f.gpu == RTX or at_most(f.cpu, 8), {"cpu": 9}),
    Rule("instance-memory", "run_service", "All containers of an instance have at most 32 GiB together, except with an RTX PRO 6000.",
         RUN_QUOTAS, lambda f: f.gpu == RTX or at_most(f.memory_gib, 32), {"memory_gib": 33}),
    Rule("gpu-in-one-container", "run_service", "Only one container of an instance has the GPU.", RUN_GPU,
         lambda f: len(f.gpus) <= 1, {"gpus": ["1", "1"]}),
    Rule("gpu-region", "run_service", "Each GPU is offered in certain regions.", RUN_GPU,
         lambda f: f.gpu is None or f.region is None or f.region in REGIONS.get(f.gpu, ()), {"gpu": RTX, "region": "us-east4"}),
    Rule("first-memory-quota", "run_service",
         "A new project has 40 GiB for Cloud Run in a region: max_instances times memory fits, except with an RTX PRO 6000.",
         "https://github.com/googlecodelabs/feedback/issues/2311",
         lambda f: f.gpu == RTX or at_most(product(f.memory_gib, f.max_instances), 40), {"memory_gib": 32, "max_instances": 2}),
    Rule("first-cpu-quota", "run_service", "A new project has 20 vCPU for Cloud Run in a region: max_instances times vCPU fits.",
         "https://github.com/googlecodelabs/feedback/issues/1856",
         lambda f: f.gpu == RTX or at_most(product(f.cpu, f.max_instances), 20), {"cpu": 8, "max_instances": 3}),
    Rule("first-gpu-quota", "run_service", "A new project has 3 GPUs without zonal redundancy, of which the next revision needs one.",
         RUN_GPU, lambda f: f.gpu is None or at_most(f.max_instances, 2), {"max_instances": 3, "cpu": 4, "memory_gib": 8}),
    Rule("no-zonal-redundancy", "run_service", "A new project has no GPU with zonal redundancy.", RUN_GPU,
         lambda f: not f.is_zonal_redundant, {"is_zonal_redundant": True}),
    Rule("gpu-cpu-allocation", "run_service", "A GPU requires CPU that is always allocated.", RUN_GPU,
         lambda f: f.gpu is None or f.is_cpu_always_allocated, {"is_cpu_always_allocated": False}),
    Rule("gpu-gen2", "run_service", "GPUs, volumes and more than 1 vCPU per engine run in the second generation.", RUN_GPU,
         lambda f: f.is_gen2, {"is_gen2": False}),
    # Cloud Run: requests, scaling, start and stop
    Rule("concurrency", "run_service", "An instance accepts 1 to 1000 concurrent requests, and gcloud's default is 80 per vCPU.",
         f"{RUN}/docs/about-concurrency", lambda f: f.concurrency is not None and 1 <= f.concurrency <= 1000,
         {"concurrency": None}),
    Rule("request-timeout", "run_service", "A request lasts at most 3600 s, the cold start before it included.", RUN_QUOTAS,
         lambda f: at_most(f.timeout_s, 3600), {"timeout_s": 3700}),
    Rule("request-timeout-covers-the-service", "run_service", "The platform cuts a request at its timeout, so the service's own is shorter.",
         RUN_CONTRACT, lambda f: f.request_timeout_s is None or f.timeout_s >= f.request_timeout_s, {"timeout_s": 200}),
    Rule("min-below-max", "run_service", "The minimum of instances is at most the maximum.", f"{RUN}/docs/configuring/min-instances",
         lambda f: f.max_instances is None or f.min_instances <= f.max_instances, {"min_instances": 2, "max_instances": 1}),
    Rule("sigterm", "run_service", "An instance is killed 10 s after SIGTERM, so a drain is shorter.", RUN_CONTRACT,
         lambda f: f.drain_s is None or f.drain_s < 10, {"drain_s": 30}),
    Rule("one-port", "run_service", "Exactly one container has a port.", f"{RUN}/docs/deploying",
         lambda f: f.num_ports == 1, {"num_ports": 2}),
    Rule("containers", "run_service", "An instance has at most 10 containers.", RUN_QUOTAS,
         lambda f: f.num_containers <= 10, {"num_containers": 11}),
    Rule("service-name", "run_service", "A service's name has at most 49 of a-z, 0-9 and '-'; with a tag it fits into a DNS label of 63.",
         RUN_API, lambda f: is_name(f.name, r"[a-z]([a-z0-9-]{0,47}[a-z0-9])?"), {"name": "Levserve"}),
    Rule("terraform-waits", "run_service", "Terraform gives up after 20 minutes by default, a start with a GPU may take 30.",
         "https://github.com/hashicorp/terraform-provider-google/blob/main/google/services/cloudrunv2/resource_cloud_run_v2_service.go",
         lambda f: f.create_timeout_s is None or f.create_timeout_s >= 1800, {"create_timeout_s": 1200}),
    Rule("own-identity", "run_service", "Without an identity of its own a service runs as the default one, which may have editor rights.",
         f"{RUN}/docs/securing/service-identity", lambda f: f.has_service_account, {"has_service_account": False}),
    Rule("weights-over-the-subnet", "run_service", "Only all-traffic egress sends Cloud Storage through the subnet's Private Google Access.",
         RUN_VPC, lambda f: not f.has_vpc or f.egress in ("ALL_TRAFFIC", "X"), {"egress": "PRIVATE_RANGES_ONLY"}),
    Rule("startup-budget", "run_probe", "A start may take 1800 s with a GPU and 240 s without.", RUN_HEALTH,
         lambda f: f.of != "startup_probe" or at_most(product(f.period_s, f.failures), 1800 if f.has_gpu else 240),
         {"of": "startup_probe", "has_gpu": False, "period_s": 10, "failures": 25}),
    Rule("probe-timeout", "run_probe", "A probe's timeout is at most its period.", RUN_HEALTH,
         lambda f: f.timeout_s is None or f.timeout_s <= f.period_s, {"timeout_s": 11, "period_s": 10}),
    Rule("startup-period", "run_probe", "A startup probe's period is 1 to 240 s, a liveness probe's at most 3600.", RUN_HEALTH,
         lambda f: 1 <= f.period_s <= (240 if f.of == "startup_probe" else 3600), {"of": "startup_probe", "period_s": 241, "failures": 1}),
    Rule("initial-delay", "run_probe", "A startup probe's initial delay is at most 240 s, a liveness probe's at most 3600.", RUN_HEALTH,
         lambda f: f.initial_delay_s <= (240 if f.of == "startup_probe" else 3600), {"of": "startup_probe", "initial_delay_s": 241}),
    Rule("no-path-in-z", "run_probe", "Google's front end answers /healthz itself: paths that end in z are reserved.",
         f"{RUN}/docs/known-issues", lambda f: f.path is None or not f.path.endswith("z"), {"path": "/healthz"}),
    Rule("reserved-variables", "run_env", "PORT and K_… are set by the platform and refused from others.", RUN_CONTRACT,
         lambda f: not RESERVED_NAMES & set(f.names), {"names": ["PORT"]}),
    Rule("variables", "run_env", "A container has at most 1000 variables of at most 32 KiB each.", RUN_QUOTAS,
         lambda f: len(f.names) <= 1000 and f.longest <= 32768, {"longest": 40000}),
    Rule("unique-variables", "run_env", "A name appears once in an environment.", RUN_API,
         lambda f: len(f.names) == len(set(f.names)), {"names": ["A", "A"]}),
    Rule("disk-size", "run_volume", "An ephemeral disk has at least 10 GiB.", RUN_DISK,
         lambda f: f.medium != "DISK" or f.size_gib >= 10, {"medium": "DISK", "size_gib": 5}),
    Rule("disk-stage", "run_volume", "Ephemeral disks are in Preview, which the launch stage BETA admits.", RUN_DISK,
         lambda f: f.medium != "DISK" or f.launch_stage == "BETA", {"medium": "DISK", "size_gib": 20, "launch_stage": "GA"}),
    Rule("memory-volume", "run_volume", "A volume in memory counts against the container's memory.",
         f"{RUN}/docs/configuring/services/in-memory-volume-mounts",
         lambda f: f.medium != "MEMORY" or f.size_gib < f.memory_gib, {"medium": "MEMORY", "size_gib": 32, "memory_gib": 32}),
    Rule("job-timeout", "run_job", "A task lasts at most 168 hours, with a GPU at most 12 (beyond one in Preview).", RUN_JOBS,
         lambda f: at_most(f.timeout_s, 43200 if f.gpu else 604800), {"gpu": L4, "timeout_s": 50400}),
    Rule("job-tasks", "run_job", "A job has at most 10000 tasks.", RUN_QUOTAS, lambda f: f.num_tasks <= 10000, {"num_tasks": 10001}),
    Rule("job-retries", "run_job", "A task is retried at most 10 times.", f"{RUN}/docs/configuring/max-retries",
         lambda f: at_most(f.max_retries, 10), {"max_retries": 11}),
    Rule("job-name", "run_job", "A job's name has at most 63 of a-z, 0-9 and '-'.", RUN_API,
         lambda f: is_name(f.name, r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"), {"name": "a" * 64}),
    Rule("job-zonal-redundancy", "run_job", "Jobs have GPUs without zonal redundancy only.", f"{RUN}/docs/configuring/jobs/gpu",
         lambda f: not f.is_zonal_redundant, {"is_zonal_redundant": True}),
    Rule("execution-token", "run_job", "The API drops an execution token at the next execution, and every later plan differs.",
         "https://github.com/GoogleCloudPlatform/magic-modules/pull/19060",
         lambda f: not f.is_executed_by_terraform, {"is_executed_by_terraform": True}),
    Rule("traffic", "traffic", "Shares of traffic are whole percents that sum up to at most 100.", f"{RUN}/docs/rollouts-rollbacks-traffic-migration",
         lambda f: sum(f.percents) <= 100, {"percents": [60, 50]}),
    Rule("unnamed-revision", "revision", "With --tag or --revision-suffix gcloud names the revision, and each later plan of Terraform removes it.",
         "https://github.com/hashicorp/terraform-provider-google/issues/13410", lambda f: not f.is_named, {"is_named": True}),
    # GKE: nodes, pods, capacity
    Rule("tpu-machine", "node_pool", "TPUs are on ct5lp, ct6e and tpu7x machines of certain sizes.", GKE_TPUS,
         lambda f: f.machine in TPUS or f.machine.startswith("e2-"), {"machine": "ct6e-standard-2t"}),
    Rule("single-host-placement", "node_pool", "A slice of one machine has no placement policy.", GKE_TPUS,
         lambda f: not f.has_placement, {"has_placement": True}),
    Rule("one-capacity", "node_pool", "A pool is spot, flex-start or neither.", f"{GKE}/docs/concepts/dws",
         lambda f: not (f.is_spot and f.is_flex_start), {"is_spot": True, "is_flex_start": True, "is_repaired": False}),
    Rule("flex-start-duration", "node_pool", "A flex-start node lives at most 7 days.", f"{GKE}/docs/concepts/dws",
         lambda f: not f.is_flex_start or 0 < (f.max_run_s or 0) <= 604800, {"is_flex_start": True, "max_run_s": 700000, "is_repaired": False}),
    Rule("flex-start-repair", "node_pool", "Flex-start nodes are not repaired.", f"{GKE}/docs/concepts/dws",
         lambda f: not f.is_flex_start or f.is_repaired is False, {"is_flex_start": True, "max_run_s": 600, "is_repaired": True}),
    Rule("reservation", "node_pool", "Without NO_RESERVATION a TPU pool takes any reservation of its zone.",
         "https://docs.cloud.google.com/compute/docs/instances/reservations-consume",
         lambda f: f.machine not in TPUS or f.reservation in ("NO_RESERVATION", "SPECIFIC_RESERVATION"), {"reservation": None}),
    Rule("specific-reservation", "node_pool", "A specific reservation is named by the key compute.googleapis.com/reservation-name.",
         "https://docs.cloud.google.com/compute/docs/instances/reservations-consume",
         lambda f: f.reservation != "SPECIFIC_RESERVATION" or f.reservation_key == "compute.googleapis.com/reservation-name",
         {"reservation": "SPECIFIC_RESERVATION", "reservation_key": "name"}),
    Rule("one-kind-of-limit", "node_pool", "An autoscaler has limits per zone or in total, not both.",
         f"{GKE}/docs/concepts/cluster-autoscaler", lambda f: not f.has_both_limits, {"has_both_limits": True}),
    Rule("metadata-server", "node_pool", "Workload Identity needs the metadata server of GKE on the pool.",
         f"{GKE}/docs/how-to/workload-identity", lambda f: f.metadata_mode == "GKE_METADATA", {"metadata_mode": "GCE_METADATA"}),
    Rule("node-scopes", "node_pool", "Nodes with a service account of their own have the scope cloud-platform, and roles limit them.",
         f"{GKE}/docs/how-to/access-scopes", lambda f: f.scopes == ["https://www.googleapis.com/auth/cloud-platform"], {"scopes": []}),
    Rule("upgrade-needs-a-node", "node_pool", "Surge and unavailable nodes of an upgrade are not both 0.",
         f"{GKE}/docs/concepts/node-pool-upgrade-strategies",
         lambda f: f.surge is None or f.surge + (f.unavailable or 0) >= 1, {"surge": 0, "unavailable": 0}),
    Rule("pool-name", "node_pool", "A node pool's name has at most 40 of a-z, 0-9 and '-'.",
         f"{GKE}/docs/reference/rest/v1/projects.locations.clusters.nodePools",
         lambda f: is_name(f.name, r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"), {"name": "a" * 41}),
    Rule("chips-of-the-slice", "tpu_pod", "A pod requests every chip of its machine.", GKE_TPUS,
         lambda f: int(f.limits["google.com/tpu"]) == SLICES.get((f.accelerator, f.topology)),
         {"accelerator": "tpu-v6e-slice", "topology": "2x2", "limits": {"google.com/tpu": "1"}}),
    Rule("requests-are-limits", "tpu_pod", "Requests of chips equal their limits.", f"{KUBERNETES}/tasks/manage-gpus/scheduling-gpus/",
         lambda f: f.requests["google.com/tpu"] == f.limits["google.com/tpu"], {"requests": {"google.com/tpu": "2", "cpu": "1", "memory": "1G"}}),
    Rule("tpu-selectors", "tpu_pod", "A TPU pod selects its accelerator and its topology.", f"{GKE}/docs/how-to/tpus",
         lambda f: f.accelerator and f.topology, {"topology": None}),
    Rule("tpu-toleration", "tpu_pod", "TPU nodes have the taint google.com/tpu.", f"{GKE}/docs/how-to/tpus",
         lambda f: "google.com/tpu" in f.tolerations, {"tolerations": []}),
    Rule("guaranteed-share", "tpu_pod", "A pod without requests of CPU and memory is BestEffort, the first to be evicted.",
         f"{KUBERNETES}/concepts/workloads/pods/pod-qos/", lambda f: {"cpu", "memory"} <= f.requests.keys(),
         {"requests": {"google.com/tpu": "1"}}),
    Rule("tpu-user", "tpu_pod", "Device files of a TPU belong to root: Google's TPU manifests set no other user.",
         "https://github.com/marin-community/marin/pull/3871", lambda f: f.user in ("0", None) or f.is_tried, {"user": "10001"}),
    Rule("grace-covers-the-drain", "tpu_pod", "A pod is killed at the end of its grace period: hook and drain come before it.",
         f"{KUBERNETES}/concepts/workloads/pods/pod-lifecycle/#pod-termination",
         lambda f: f.of == "job" or f.grace_s > f.pre_stop_s + f.drain_s, {"grace_s": 60}),
    Rule("deregistration", "tpu_pod", "The load balancer drops an endpoint up to 40 s after the pod's end begins; on spot there is no such time.",
         GKE_NEG, lambda f: f.of == "job" or f.pre_stop_s >= 40 or f.pre_stop_s + f.drain_s <= 15, {"pre_stop_s": 5}),
    Rule("drain-covers-streams", "tpu_pod", "A stream may last as long as a request, up to 600 s of drain; a spot pod has 15 s.", GKE_SPOT,
         lambda f: f.of == "job" or f.pre_stop_s + f.drain_s <= 15 or f.drain_s >= min(600, f.request_timeout_s),
         {"drain_s": 30}),
    Rule("job-restarts", "tpu_pod", "A job's pod restarts never or on failure.", f"{KUBERNETES}/concepts/workloads/controllers/job/",
         lambda f: f.of != "job" or f.restart_policy in ("Never", "OnFailure"), {"of": "job", "restart_policy": "Always"}),
    Rule("startup-and-liveness-successes", "kube_probe", "Startup and liveness probes succeed at the first success.", f"{KUBE_API}/pod-v1/#Probe",
         lambda f: f.of == "readiness_probe" or f.successes in (None, 1), {"of": "liveness_probe", "successes": 2}),
    Rule("kube-probe-numbers", "kube_probe", "Periods, timeouts and thresholds of a probe are at least 1.", f"{KUBE_API}/pod-v1/#Probe",
         lambda f: min(f.period_s, f.timeout_s, f.failures) >= 1, {"timeout_s": 0}),
    Rule("rollout-moves", "deployment", "Surge and unavailable pods of a rollout are not both 0.",
         f"{KUBE_API}/deployment-v1/", lambda f: not (f.surge == "0" and f.unavailable == "0"), {"surge": "0", "unavailable": "0"}),
    Rule("selector", "deployment", "A Deployment's selector matches its pods' labels.", f"{KUBE_API}/deployment-v1/",
         lambda f: f.selector.items() <= f.labels.items(), {"selector": {"app": "other"}}),
    Rule("progress-deadline", "deployment", "A rollout has failed when nothing progresses for its deadline, so it is longer than a start.",
         f"{KUBERNETES}/concepts/workloads/controllers/deployment/#progress-deadline-seconds",
         lambda f: f.progress_s > f.start_s, {"progress_s": 600}),
    Rule("autoscaler-minimum", "autoscaler", "An autoscaler keeps at least one replica.", f"{KUBERNETES}/tasks/run-application/horizontal-pod-autoscale/",
         lambda f: 1 <= f.min <= f.max, {"min": 0}),
    Rule("autoscaler-metric-names", "autoscaler", "Prometheus metrics are named prometheus.googleapis.com|NAME|KIND.",
         f"{GKE}/docs/how-to/horizontal-pod-autoscaling",
         lambda f: all(re.fullmatch(r"prometheus\.googleapis\.com\|\w+\|(gauge|counter)", name) for name in f.metrics), {"metrics": ["waiting"]}),
    Rule("autoscaler-sees-running", "autoscaler",
         "The largest demand of all metrics wins; waiting requests alone remove replicas whose slots are full.",
         f"{KUBERNETES}/tasks/run-application/horizontal-pod-autoscale/#algorithm-details",
         lambda f: {name.split("|")[-2] for name in f.metrics if "|" in name} >= {"levserve_num_requests_running", "levserve_num_requests_waiting"},
         {"metrics": ["prometheus.googleapis.com|levserve_num_requests_waiting|gauge"]}),
    # GKE: the cluster and its gateway
    Rule("windows", "cluster", "A maintenance window lasts at least 4 hours.", GKE_WINDOWS,
         lambda f: f.window is not None and f.window["start_time"][:10] <= f.window["end_time"][:10] and _hours(f.window) >= 4,
         {"window": {"start_time": "2026-01-03T02:00:00Z", "end_time": "2026-01-03T03:00:00Z", "recurrence": "FREQ=DAILY"}}),
    Rule("windows-sum", "cluster", "Windows give at least 48 hours in 32 days.", GKE_WINDOWS,
         lambda f: f.window is not None and _hours(f.window) * _times(f.window["recurrence"]) >= 48,
         {"window": {"start_time": "2026-01-03T02:00:00Z", "end_time": "2026-01-03T06:00:00Z", "recurrence": "FREQ=WEEKLY;BYDAY=SA"}}),
    Rule("workload-pool", "cluster", "The workload pool is PROJECT.svc.id.goog.", f"{GKE}/docs/how-to/workload-identity",
         lambda f: f.workload_pool == f"{f.project}.svc.id.goog", {"workload_pool": "other"}),
    Rule("vpc-native", "cluster", "Gateways send requests to pods through NEGs, which need a VPC-native cluster.",
         f"{GKE}/docs/how-to/deploying-gateways", lambda f: f.is_vpc_native and f.has_gateway_api, {"is_vpc_native": False}),
    Rule("private-nodes-reach-the-plane", "cluster", "Without an address the control plane is reached over its DNS endpoint.",
         f"{GKE}/docs/concepts/network-isolation", lambda f: f.has_ip_endpoint or f.has_dns_endpoint, {"has_dns_endpoint": False}),
    Rule("cluster-name", "cluster", "A cluster's name has at most 40 of a-z, 0-9 and '-'.", f"{GKE}/docs/reference/rest/v1/projects.locations.clusters",
         lambda f: is_name(f.name, r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"), {"name": "Levserve"}),
    Rule("default-pool", "cluster", "A cluster is made with at least one node, whose pool is then removed.",
         "https://registry.terraform.io/providers/hashicorp/google/latest/docs/resources/container_cluster",
         lambda f: f.initial_nodes >= 1, {"initial_nodes": 0}),
    Rule("backend-timeout", "backend", "A backend's timeout is at most 86400 s and its default of 30 s cuts longer streams.", GKE_GATEWAY,
         lambda f: 30 < f.timeout_s <= 86430, {"timeout_s": 30}),
    Rule("draining", "backend", "Connection draining lasts at most 3600 s.", "https://docs.cloud.google.com/load-balancing/docs/enabling-connection-draining",
         lambda f: 0 <= f.draining_s <= 3600, {"draining_s": 3601}),
    Rule("health-check", "health_check", "A health check's timeout is at most its period, and its period at most 300 s.",
         "https://docs.cloud.google.com/load-balancing/docs/health-check-concepts",
         lambda f: f.timeout_s <= f.period_s <= 300, {"timeout_s": 20, "period_s": 10}),
    Rule("gateway-tls", "gateway", "A certificate map belongs to a global gateway that listens for HTTPS.",
         f"{GKE}/docs/how-to/secure-gateway",
         lambda f: ("external" in f.gateway_class) == (f.protocol == "HTTPS" and bool(f.certificate_map)),
         {"gateway_class": "gke-l7-global-external-managed", "protocol": "HTTP"}),
    Rule("scrape", "scrape", "Managed Prometheus scrapes every 5 s or less often.", "https://docs.cloud.google.com/stackdriver/docs/managed-prometheus/setup-managed",
         lambda f: f.period_s >= 5, {"period_s": 1}),
    # Project, network, storage, identities
    Rule("apis", "project", "Each feature needs its API: image streaming containerfilesystem, the gateway's certificates certificatemanager.",
         GKE_STREAMING, lambda f: {f"{name}.googleapis.com" for name in APIS} <= f.apis, {"apis": {"run.googleapis.com"}}),
    Rule("api-names", "services", "An API is named NAME.googleapis.com.", "https://docs.cloud.google.com/service-usage/docs/enable-disable",
         lambda f: all(name.endswith(".googleapis.com") for name in f.names), {"names": ["run"]}),
    Rule("subnet-size", "subnet", "Direct VPC egress needs a subnet of /26 or larger.", RUN_VPC,
         lambda f: f.prefix <= 26, {"prefix": 28}),
    Rule("private-access", "subnet", "Without an external address Cloud Storage is reached through Private Google Access.",
         "https://docs.cloud.google.com/vpc/docs/private-google-access",
         lambda f: f.purpose == "REGIONAL_MANAGED_PROXY" or f.has_private_access, {"has_private_access": False}),
    Rule("bucket-name", "bucket", "A bucket's name has 3 to 63 of a-z, 0-9, '-', '_' and '.'.", "https://docs.cloud.google.com/storage/docs/buckets",
         lambda f: is_name(f.name, r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"), {"name": "My-Bucket"}),
    Rule("bucket-access", "bucket", "A bucket is private only with public access prevention, and IAM alone decides only with uniform access.",
         "https://docs.cloud.google.com/storage/docs/public-access-prevention", lambda f: f.is_private, {"is_private": False}),
    Rule("bucket-region", "bucket", "A bucket's location is fixed at its creation; the default is the multi-region US.",
         "https://docs.cloud.google.com/storage/docs/locations", lambda f: bool(f.region), {"region": None}),
    Rule("service-account-name", "service_account", "A service account's name has 6 to 30 of a-z, 0-9 and '-'.",
         "https://docs.cloud.google.com/iam/docs/service-accounts-create",
         lambda f: is_name(f.name, r"[a-z][a-z0-9-]{4,28}[a-z0-9]"), {"name": "serve"}),
    Rule("repository-name", "repository", "A repository's name has at most 63 of a-z, 0-9 and '-'.",
         "https://docs.cloud.google.com/artifact-registry/docs/repositories/create-repos",
         lambda f: is_name(f.name, r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"), {"name": "Images"}),
    Rule("image-platform", "image", "Cloud Run and GKE pull from Artifact Registry; an image has a tag or a digest that does not move.",
         f"{RUN}/docs/deploying", lambda f: is_name(f.name, r"[a-z0-9.-]+\.(pkg\.dev|gcr\.io)/\S+(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})"),
         {"name": "levserve:latest"}),
    # Monitoring
    Rule("uptime-period", "uptime_check", "An uptime check runs every 60, 300, 600 or 900 s.", f"{MONITORING}/projects.uptimeCheckConfigs",
         lambda f: f.period_s in (60, 300, 600, 900), {"period_s": 30}),
    Rule("uptime-timeout", "uptime_check", "An uptime check times out after 1 to 60 s.", f"{MONITORING}/projects.uptimeCheckConfigs",
         lambda f: 1 <= f.timeout_s <= 60, {"timeout_s": 61}),
    Rule("alert-interval", "alert", "A PromQL condition is evaluated every 30 s or a multiple of it.", f"{MONITORING}/projects.alertPolicies",
         lambda f: f.every_s > 0 and f.every_s % 30 == 0, {"every_s": 45}),
    Rule("alert-duration", "alert", "A PromQL condition's duration is not negative.", f"{MONITORING}/projects.alertPolicies",
         lambda f: f.wait_s >= 0, {"wait_s": -60}),
    Rule("alert-auto-close", "alert", "An incident closes by itself after 30 minutes to 7 days.", f"{MONITORING}/projects.alertPolicies",
         lambda f: 1800 <= f.close_s <= 604800, {"close_s": 600}),
    Rule("alert-severity", "alert", "A severity is CRITICAL, ERROR or WARNING.", f"{MONITORING}/projects.alertPolicies",
         lambda f: f.severity in ("CRITICAL", "ERROR", "WARNING"), {"severity": "HIGH"}),
    Rule("log-metric-distribution", "log_metric", "A log metric that extracts values is a distribution with buckets.",
         "https://docs.cloud.google.com/logging/docs/reference/v2/rest/v2/projects.metrics",
         lambda f: f.value_type != "DISTRIBUTION" or f.has_buckets, {"has_buckets": False}),
    Rule("log-metric-name", "log_metric", "A log metric's name has at most 100 characters and begins with no '/'.",
         "https://docs.cloud.google.com/logging/docs/reference/v2/rest/v2/projects.metrics",
         lambda f: is_name(f.name, r"[A-Za-z0-9_.,+!*',()%-][A-Za-z0-9_.,+!*',()%/-]{0,99}"), {"name": "/start"}),
    Rule("dashboard", "dashboard", "A mosaic has at most 48 columns.", f"{MONITORING.replace('ref_v3/rest/v3', 'ref_dashboards')}",
         lambda f: all(tile["xPos"] + tile["width"] <= 48 for tile in f.tiles), {"tiles": [{"xPos": 40, "width": 24}]}),
    # Cloud Build and the image
    Rule("build-timeout", "build", "A build lasts at most 24 hours.", BUILD_CONFIG, lambda f: f.timeout_s <= 86400, {"timeout_s": 90000}),
    Rule("build-covers-prewarm", "build", "A build's timeout of 60 minutes by default is shorter than a prewarm and a start.", BUILD_CONFIG,
         lambda f: f.timeout_s >= 3600 + 1800, {"timeout_s": 3600}),
    Rule("build-steps", "build", "A build has at most 300 steps, each id once.", BUILD_CONFIG,
         lambda f: f.num_steps <= 300 and len(f.ids) == len(set(f.ids)), {"ids": ["a", "a"]}),
    Rule("build-machine", "build", "Machine types of the default pool are E2 and N1, by their names of the API.", BUILD_CONFIG,
         lambda f: f.machine in MACHINES, {"machine": "E2_HIGHCPU_64"}),
    Rule("build-disk", "build", "A build's disk has at most 4000 GB.", BUILD_CONFIG, lambda f: at_most(f.disk_gb, 4000), {"disk_gb": 5000}),
    Rule("build-logging", "build", "With a service account of the user a build logs to Cloud Logging or to a bucket of the user.",
         f"{BUILD}/securing-builds/configure-user-specified-service-accounts",
         lambda f: f.logging in ("CLOUD_LOGGING_ONLY", "NONE"), {"logging": None}),
    Rule("substitution-names", "build", "Substitutions of the user begin with an underscore and are capitals, at most 100 characters.",
         f"{BUILD}/configuring-builds/substitute-variable-values",
         lambda f: all(re.fullmatch(r"_[A-Z0-9_]{1,99}", name) for name in f.substitutions), {"substitutions": ["REGION"]}),
    Rule("substitution-values", "build", "A substitution's value has at most 4000 characters.",
         f"{BUILD}/configuring-builds/substitute-variable-values", lambda f: f.longest_substitution <= 4000, {"longest_substitution": 5000}),
    Rule("dynamic-substitutions", "build", "A substitution in a substitution needs dynamicSubstitutions.",
         f"{BUILD}/configuring-builds/use-bash-and-bindings-in-substitutions", lambda f: not f.nested or f.dynamic, {"dynamic": None}),
    Rule("script-alone", "build_step", "A step has a script, or an entrypoint with arguments.", BUILD_CONFIG,
         lambda f: not (f.has_script and f.has_args), {"has_script": True, "has_args": True}),
    Rule("script-substitutions", "build_step", "A script sees substitutions as variables only with automapSubstitutions.",
         f"{BUILD}/configuring-builds/run-bash-scripts", lambda f: not f.substitutions_in_script or f.automaps,
         {"substitutions_in_script": True, "automaps": False}),
    Rule("docker-hub", "build_step", "Docker Hub limits anonymous pulls by address; mirror.gcr.io does not.",
         "https://docs.cloud.google.com/artifact-registry/docs/pull-cached-dockerhub-images",
         lambda f: f.name.startswith("$") or ("/" in f.name and "." in f.name.partition("/")[0]), {"name": "python:3.12"}),
    Rule("inline-cache", "build_step", "Cloud Build's docker uses BuildKit only with DOCKER_BUILDKIT=1.",
         "https://github.com/google-github-actions/setup-gcloud/issues/658", lambda f: not f.needs_buildkit or f.has_buildkit,
         {"needs_buildkit": True, "has_buildkit": False}),
    Rule("submit-names-its-config", "build_submit", "Substitutions need a configuration that declares them.",
         f"{BUILD}/configuring-builds/substitute-variable-values", lambda f: not f.substitutions or f.has_config, {"has_config": False}),
    Rule("submit-identity", "build_submit", "The default identity of builds in a new project has no rights to deploy.",
         f"{BUILD}/cloud-build-service-account-updates", lambda f: f.has_service_account, {"has_service_account": False}),
    Rule("no-buildkit", "dockerfile", "`gcloud run deploy --source` builds without BuildKit: no RUN --mount, no COPY --link, no heredocs.",
         "https://github.com/therealaleph/MasterHttpRelayVPN-RUST/issues/620",
         lambda f: not (f.has_mount or f.has_link or f.has_heredoc), {"has_mount": True}),
    Rule("image-user", "dockerfile", "A user other than root by number, so that a cluster can see that it is not root.",
         f"{KUBERNETES}/tasks/configure-pod-container/security-context/",
         lambda f: re.fullmatch(r"[1-9]\d*(:\d+)?", f.user), {"user": "levserve"}),
    Rule("image-signals", "dockerfile", "The first process receives SIGTERM: an exec-form entry point.", RUN_CONTRACT,
         lambda f: f.entrypoint_is_exec and f.signal == "SIGTERM", {"entrypoint_is_exec": False}),
    Rule("image-bases", "dockerfile", "Base images come from registries without a limit on anonymous pulls.",
         "https://docs.cloud.google.com/artifact-registry/docs/pull-cached-dockerhub-images",
         lambda f: f.registries <= {"mirror.gcr.io", "ghcr.io", "gcr.io"}, {"registries": {"docker.io"}}),
    Rule("source-region", "source_deploy", "A deployment from source asks for a region unless it is given.", f"{RUN}/docs/deploying-source-code",
         lambda f: f.has_region, {"has_region": False}),
    Rule("dns-endpoint", "credentials", "A cluster without addresses is reached with --dns-endpoint, in its location.",
         f"{GKE}/docs/concepts/network-isolation", lambda f: f.has_dns_endpoint and f.has_location, {"has_dns_endpoint": False}),
)  # fmt: skip


def _hours(window: dict[str, str]) -> float:
    """Return the hours of the first window."""
    start, end = (datetime.fromisoformat(window[name]) for name in ("start_time", "end_time"))
    return (end - start).total_seconds() / 3600


def _times(recurrence: str) -> int:
    """Return how often a daily or weekly window recurs in 32 days, at least."""
    if "FREQ=DAILY" in recurrence:
        return 32
    days = re.search(r"BYDAY=([A-Z,]+)", recurrence)
    return 4 * (len(days[1].split(",")) if days else 1)
