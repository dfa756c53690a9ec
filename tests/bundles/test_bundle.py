"""Executables of a bundle run; a bundle that was changed is refused before any of it is unpickled."""

import dataclasses
import hashlib
import json
import pickle

import jax
import numpy as np
import pytest

from service.bundles.bundle import MANIFEST_NAME, BundleRefused, Manifest, check_names, make_bundle
from service.bundles.key import BundleKey, machine_inputs, source_digest
from service.compile.counter import CompileCounter
from service.compile.program import load_executable
from tests.bundles.bundles import KEY, NAMES, small_bundle

pytestmark = pytest.mark.usefixtures("compiled_anew")


@pytest.fixture(scope="module")
def bundle():
    return small_bundle()


def refused(act) -> BundleRefused:
    with pytest.raises(BundleRefused) as refusal:
        act()
    return refusal.value


def test_an_executable_comes_back_and_runs_without_trace_and_compilation(bundle):
    counter = CompileCounter()
    values = np.arange(3, dtype=np.float32)
    loaded = {name: load_executable(bundle.data[name], jax.devices()[:1]) for name in NAMES}
    assert loaded["double"]((), [], values).tolist() == [0, 2, 4]
    assert float(loaded["sum"]((), [], values)) == 3
    assert (counter.num_traces, counter.num_compiles) == (0, 0)
    counter.close()


def test_the_manifest_comes_back_with_all_it_says(bundle):
    manifest = Manifest.parse("here", bundle.manifest.to_json(), KEY)
    assert manifest == bundle.manifest
    assert manifest.inputs == KEY.inputs
    assert list(bundle.files())[-1] == MANIFEST_NAME
    assert {file.size_bytes for file in manifest.executables.values()} == {len(data) for data in bundle.data.values()}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b"[" * 100_000])
def test_garbage_for_a_manifest_is_refused(data):
    assert refused(lambda: Manifest.parse("here", data, KEY)).outcome == "corrupt"


def test_a_manifest_of_another_jax_is_stale_and_says_so(bundle):
    newer = BundleKey(KEY.inputs | {"packages": {"jax": "1.2.4"}})
    refusal = refused(lambda: Manifest.parse("here", bundle.manifest.to_json(), newer))
    assert refusal.outcome == "stale"
    assert "packages" in refusal.reason


def test_a_manifest_of_another_format_is_stale(bundle):
    content = json.loads(bundle.manifest.to_json()) | {"format_version": 99}
    assert refused(lambda: Manifest.parse("here", json.dumps(content).encode(), KEY)).outcome == "stale"


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b", "", ".hidden", "a\0b", 7])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(bundle, name):
    content = json.loads(bundle.manifest.to_json())
    content["executables"]["sum"]["file"] = name
    assert refused(lambda: Manifest.parse("here", json.dumps(content).encode(), KEY)).outcome == "corrupt"


class Canary:
    """A pickle that leaves a trace when it is read."""

    def __reduce__(self):
        return open, ("canary-has-run", "w")


@pytest.mark.parametrize("is_padded", [False, True])
def test_a_canary_in_place_of_an_executable_is_refused_unread(bundle, tmp_path, monkeypatch, is_padded):
    monkeypatch.chdir(tmp_path)
    canary = pickle.dumps(Canary())
    if is_padded:
        canary = canary.ljust(bundle.manifest.executables["sum"].size_bytes, b"\0")
    refusal = refused(lambda: bundle.manifest.check("here", "sum", canary))
    assert refusal.outcome == "corrupt"
    assert not (tmp_path / "canary-has-run").exists()


def test_a_file_that_is_cut_or_gone_is_refused_with_both_sizes(bundle):
    size = len(bundle.data["sum"])
    assert (
        f"{size - 1} bytes, not {size}"
        in refused(lambda: bundle.manifest.check("here", "sum", bundle.data["sum"][:-1])).reason
    )
    assert "is missing" in refused(lambda: bundle.manifest.check("here", "sum", None)).reason
    assert (
        "lacks 1 executables such as product"
        in refused(lambda: check_names("here", bundle.manifest, [*NAMES, "product"])).reason
    )


def test_the_key_changes_with_everything_it_names():
    inputs = machine_inputs(jax.devices()[:1])
    assert inputs["packages"].keys() >= {"jax", "jaxlib", "numpy"}
    assert {
        "python",
        "platform",
        "device_kind",
        "cpu_features",
        "native_code",
        "num_devices",
        "variables",
    } <= inputs.keys()
    digests = {BundleKey(inputs).digest} | {BundleKey(inputs | {name: "other"}).digest for name in inputs}
    assert len(digests) == len(inputs) + 1
    assert BundleKey(dict(reversed(inputs.items()))).digest == BundleKey(inputs).digest


def test_xla_flags_are_part_of_the_key_and_the_choice_of_a_platform_is_not(monkeypatch):
    before = machine_inputs(jax.devices()[:1])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu,tpu")
    assert machine_inputs(jax.devices()[:1]) == before
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert machine_inputs(jax.devices()[:1]) != before


def test_a_changed_source_file_changes_the_digest(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.py").write_text("1")
    (tmp_path / "step.py").write_text("2")
    first = source_digest(tmp_path, ["kernels", "step.py"])
    assert source_digest(tmp_path, ["kernels", "step.py"]) == first
    (tmp_path / "kernels" / "a.py").write_text("3")
    assert source_digest(tmp_path, ["kernels", "step.py"]) != first


def test_the_sums_are_of_the_bytes(bundle):
    file = bundle.manifest.executables["sum"]
    assert file.sha256 == hashlib.sha256(bundle.data["sum"]).hexdigest()
    assert file.file.startswith(f"sum-{file.sha256[:12]}")
    assert dataclasses.asdict(file)["compile_seconds"] > 0


def test_a_key_that_was_written_down_is_the_same_key():
    key = BundleKey({"sizes": (1, 4), "model": {"layers": 2}})
    assert key.differences(json.loads(json.dumps(key.inputs))) == []


def test_one_that_was_loaded_goes_into_a_bundle_as_it_was_stored():
    bundle = small_bundle()
    loaded = {name: load_executable(data, jax.devices()[:1]) for name, data in bundle.data.items()}
    again = make_bundle(KEY, loaded, dict.fromkeys(loaded, 1.0), {}, serialized=bundle.data)
    assert again.data == bundle.data
    values = np.arange(3, dtype=np.float32)
    assert load_executable(again.data["double"], jax.devices()[:1])((), [], values).tolist() == [0, 2, 4]
