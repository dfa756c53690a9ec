"""The quota that a deployment needs, beside what Google lists."""

import json

import pytest

from scripts.deploy import quota
from scripts.deploy.quota import Need, compare, limits_of, needs_of_gpu, needs_of_tpu

LISTED = json.dumps([
    {"quotaId": "MemAllocPerProjectRegion", "dimensionsInfos": [
        {"dimensions": {"region": "us-central1"}, "details": {"value": "42949672960"}},
        {"applicableLocations": ["europe-west4"], "details": {"value": "1"}},
    ]},
    {"quotaId": "CpuAllocPerProjectRegion", "dimensionsInfos": [
        {"applicableLocations": ["us-central1", "us-east4"], "details": {"value": "20000"}},
    ]},
    {"quotaId": "Other", "dimensionsInfos": [{"details": {}}]},
])  # fmt: skip


def test_the_limits_of_a_region_are_read():
    assert limits_of(LISTED, "us-central1") == {
        "MemAllocPerProjectRegion": 40 * 2**30,
        "CpuAllocPerProjectRegion": 20000,
    }


def test_an_l4_fits_into_a_new_project(capsys):
    compare("p", "us-central1", needs_of_gpu("nvidia-l4", 8, 32), limits_of(LISTED, "us-central1"))
    assert "L4 GPUs without zonal redundancy in us-central1: 1 needed, unknown allowed" in capsys.readouterr().out


def test_an_rtx_pro_6000_does_not_and_the_quota_is_named():
    with pytest.raises(SystemExit, match=r"MemAllocPerProjectRegion.*quotas\?project=p"):
        compare("p", "us-central1", needs_of_gpu("nvidia-rtx-pro-6000", 20, 80), limits_of(LISTED, "us-central1"))


@pytest.mark.parametrize(("memory_gib", "fits_twice"), [(32, False), (20, True)])
def test_a_project_without_room_for_two_instances_is_found_before_a_build(monkeypatch, memory_gib, fits_twice):
    monkeypatch.setattr(quota, "read", lambda *command: LISTED)
    needs = needs_of_gpu("nvidia-l4", 8, memory_gib)
    assert quota.check("p", "us-central1", "run.googleapis.com", needs) is fits_twice


def test_no_limit_is_enough_and_zero_is_not():
    compare("p", "r", [Need("A", 1, "a")], {"A": -1})
    with pytest.raises(SystemExit):
        compare("p", "r", [Need("A", 1, "a")], {"A": 0})


@pytest.mark.parametrize(
    ("machine", "capacity", "quota"),
    [
        ("ct5lp-hightpu-1t", "on_demand", "TPU_LITE_PODSLICE_V5"),
        ("ct5lp-hightpu-1t", "spot", "PREEMPTIBLE_TPU_LITE_PODSLICE_V5"),
        ("ct6e-standard-4t", "on_demand", "TPUS-PER-TPU-FAMILY-per-project-region"),
        ("ct6e-standard-4t", "flex_start", "PREEMPTIBLE-TPU-V6E-per-project-region"),
    ],
)
def test_each_kind_of_capacity_has_a_quota_of_its_own(machine, capacity, quota):
    assert needs_of_tpu(machine, 4, capacity) == Need(quota, 4, needs_of_tpu(machine, 4, capacity).title)
