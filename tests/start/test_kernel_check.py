"""An attention kernel that fails or is wrong on a device is refused by name, and the reference serves in its place."""

from types import SimpleNamespace

import pytest

from service.bundles.bundle import Bundle, Manifest
from service.checkpoint.discover import locate
from service.kernels.choice import KernelName
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.executables import BundleSearch, find_checked
from service.start.kinds.engine_spec import choose_engine_spec
from service.start.progress import StartProgress
from service.storage.local import LocalSource
from tests.device.devices import NamedDevice
from tests.process import ServiceProcess
from tests.served import DEMO, SMALL, answers_of


@pytest.mark.parametrize(
    ("kernel", "fault"),
    [
        ("wrong", "differs from the reference by"),
        pytest.param("failing", "failed: NotImplementedError: no such instruction", marks=pytest.mark.grid),
    ],
)
def test_a_bad_kernel_is_refused_by_name_and_the_answers_are_the_references(kernel, fault, demo_answers):
    with ServiceProcess("tests.start.service_with_kernel", kernel_double=kernel, **SMALL) as service:
        service.wait_until_ready()
        assert answers_of(service, demo_answers[:3]) == [pair["answer"] for pair in demo_answers[:3]]
        [refusal] = [line for line in service.log if "is refused" in line.get("message", "")]
    assert refusal["severity"] == "ERROR"
    assert fault in refusal["message"]
    assert "make device-check" in refusal["message"]
    assert refusal["reason"].startswith(("native ", "blocks "))


@pytest.mark.parametrize(
    ("platform", "making", "is_checked"),
    [
        ("gpu", None, True),  # there is no bundle
        ("gpu", {"has_run": False}, True),
        ("tpu", {}, True),  # of an earlier version
        ("tpu", {"has_run": True}, False),
        ("cpu", None, False),
    ],
)
def test_only_an_accelerator_checks_and_only_what_has_not_run_there(platform, making, is_checked):
    checks = []
    device = NamedDevice(0, platform)
    spec = SimpleNamespace(
        mesh=SimpleNamespace(platform=platform, devices=(device,)), kernel_fault=lambda: checks.append(platform)
    )
    bundle = None if making is None else Bundle(Manifest("", {}, {}, making), {})
    found = BundleSearch(spec, SimpleNamespace(outcome="hit"), bundle, 0.0)
    assert find_checked(lambda spec: found, spec, pytest.fail, StartProgress(Metrics())) is found
    assert checks == [platform] * is_checked


def test_a_refused_kernel_is_replanned_with_the_reference_which_has_a_bundle_of_its_own():
    client = SimpleNamespace(platform_version="1")
    device = NamedDevice(0, "tpu", "TPU v6 lite", client, 10**9)
    located, settings = locate(str(DEMO), LocalSource), Settings(max_num_seqs=1)
    usual = choose_engine_spec(settings, located, [device])
    spec = choose_engine_spec(settings, located, [device], kernel_fault="ragged fails")
    assert (usual.kernel.name, spec.kernel.name) == (KernelName.RAGGED, KernelName.REFERENCE)
    assert spec.kernel.of_heads[0][1].cached_head_dim == 64  # not padded
    assert "kernel" in spec.key.differences(usual.key.inputs)
    assert spec.specs == usual.specs  # so that weights can be read before the kernel is checked
    assert spec.kernel_fault() is None
