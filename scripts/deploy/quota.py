"""The project's quota, read before anything is made.

Source: the ids of quotas are those of `gcloud beta quotas info list`; v5e's is in `gcloud compute regions describe`.
"""

import json
import sys
from dataclasses import dataclass

from scripts.deploy.shell import read

# Units of a quota in one GPU, vCPU or GiB.
MILLI, GIB = 1000, 2**30


@dataclass(frozen=True)
class Need:
    """What a deployment needs of one quota in its region."""

    quota: str
    amount: int
    title: str


def needs_of_gpu(gpu: str, cpu: int, memory_gib: int) -> list[Need]:
    """Return what one instance of Cloud Run needs."""
    gpus = {
        "nvidia-l4": Need("NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion", 1, "L4 GPUs without zonal redundancy"),
        "nvidia-rtx-pro-6000": Need(
            "NvidiaRtxPro6000GpuAllocNoZonalRedundancyPerProjectRegion", MILLI, "RTX PRO 6000 without zonal redundancy"
        ),
    }
    return [need for name, need in gpus.items() if name == gpu] + [
        Need("CpuAllocPerProjectRegion", cpu * MILLI, "vCPU of Cloud Run, in thousandths"),
        Need("MemAllocPerProjectRegion", memory_gib * GIB, "memory of Cloud Run, in bytes"),
    ]


def needs_of_tpu(machine: str, chips: int, capacity: str) -> Need:
    """Return what one TPU machine needs."""
    is_preemptible = capacity in ("spot", "flex_start")
    if machine.startswith("ct5lp"):
        return Need(f"{'PREEMPTIBLE_' if is_preemptible else ''}TPU_LITE_PODSLICE_V5", chips, "v5e chips")
    if is_preemptible:
        return Need("PREEMPTIBLE-TPU-V6E-per-project-region", chips, "v6e chips, spot or flex-start")
    return Need("TPUS-PER-TPU-FAMILY-per-project-region", chips, "v6e chips")


def check(project: str, region: str, service: str, needs: list[Need]) -> bool:
    """Return whether the quota of a region has room for each need twice; what cannot be read is only warned of.

    Raises:
        SystemExit: a quota is too small for one.
    """
    listed = read(
        "gcloud", "beta", "quotas", "info", "list", f"--service={service}", f"--project={project}", "--format=json"
    )
    limits = limits_of(listed or "[]", region)
    compare(project, region, needs, limits)
    return all(not 0 <= limits.get(need.quota, -1) < 2 * need.amount for need in needs)


def check_region(project: str, region: str, need: Need) -> None:
    """Compare a need with the older quotas of a Compute Engine region.

    Raises:
        SystemExit: the quota is too small.
    """
    described = read("gcloud", "compute", "regions", "describe", region, f"--project={project}", "--format=json")
    quotas = json.loads(described or "{}").get("quotas", [])
    compare(project, region, [need], {quota["metric"]: int(quota["limit"]) for quota in quotas})


def limits_of(listed: str, region: str) -> dict[str, int]:
    """Return the limits of a region by quota, of what `gcloud beta quotas info list --format=json` prints."""
    limits: dict[str, int] = {}
    for quota in json.loads(listed):
        for info in quota.get("dimensionsInfos", []):
            is_here = info.get("dimensions", {}).get("region") == region or region in info.get(
                "applicableLocations", []
            )
            if is_here and "value" in info.get("details", {}):
                limits[quota["quotaId"]] = max(int(info["details"]["value"]), limits.get(quota["quotaId"], 0))
    return limits


def compare(project: str, region: str, needs: list[Need], limits: dict[str, int]) -> None:
    """Print each need beside its limit.

    Raises:
        SystemExit: a limit is too small; -1 stands for none.
    """
    short = []
    for need in needs:
        limit = limits.get(need.quota)
        print(f"  {need.title} in {region}: {need.amount} needed, {'unknown' if limit is None else limit} allowed")
        if limit is not None and 0 <= limit < need.amount:
            short.append(need)
    if short:
        names = ", ".join(need.quota for need in short)
        sys.exit(
            f"The project has too little quota: {names}. Request more, which may take days, or choose another region: "
            f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
        )
