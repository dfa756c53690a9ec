"""The sources in a bundle's key: all that compiled functions depend on, as the import contracts have it."""

import hashlib
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import service
from service.bundles import key
from service.bundles.key import BundleKey, machine_inputs, source_digest
from service.bundles.lookup import TRACED_SOURCES
from service.device import tunings
from tests.device.devices import NamedDevice

SERVICE = Path(service.__file__).parent


@pytest.fixture
def sources(tmp_path):
    """A copy of the service's sources that a test may change."""
    return shutil.copytree(SERVICE, tmp_path / "service", ignore=shutil.ignore_patterns("demo", "__pycache__"))


@pytest.mark.parametrize(
    ("file", "constant"),
    [
        ("engine/limits.py", "MAX_STOP_IDS = 64"),
        ("engine/limits.py", "MAX_LOGPROBS = 20"),
        ("engine/token_mask.py", "WORD_BITS = 32"),
        ("engine/steps/categorical.py", "BLOCK = 256"),
        ("kernels/limits.py", "TPU_LANES = 128"),
    ],
)
def test_a_constant_that_is_traced_changes_the_digest(sources, file, constant):
    before = source_digest(sources, TRACED_SOURCES)
    path = sources / file
    assert constant in path.read_text()
    path.write_text(path.read_text().replace(constant, constant + "0"))
    assert source_digest(sources, TRACED_SOURCES) != before


def test_the_host_side_of_the_engine_does_not_change_the_digest(sources):
    before = source_digest(sources, TRACED_SOURCES)
    (sources / "engine/batch.py").write_text("")
    assert source_digest(sources, TRACED_SOURCES) == before


def test_the_import_contract_holds_the_sources_of_the_key_together():
    contracts = tomllib.loads((SERVICE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [c for c in contracts if "a bundle's key does not digest" in c["name"]]
    modules = {"service." + source.removesuffix(".py").replace("/", ".") for source in TRACED_SOURCES}
    assert set(contract["source_modules"]) == modules
    rooms = {f"service.{path.stem}" for path in SERVICE.iterdir() if (path / "__init__.py").is_file()}
    allowed = {module.rpartition(".")[0] if module.count(".") == 2 else module for module in modules}
    assert rooms - set(contract["forbidden_modules"]) == allowed | {"service.errors"}


NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.01  Tue Sep 17 16:55:14 UTC 2024\nGCC version:  12\n"


def test_the_driver_and_the_libraries_of_a_gpu_are_in_its_key(tmp_path, monkeypatch):
    gpu = NamedDevice(0, "gpu", client=SimpleNamespace(platform_version="1"))
    monkeypatch.setattr(key, "CUDA_PACKAGES", ("numpy", "no-such-library"))
    monkeypatch.setattr(key, "NVIDIA_DRIVER", tmp_path / "version")
    assert machine_inputs([gpu])["driver"] == "unknown"
    (tmp_path / "version").write_text(NVRM)
    inputs = machine_inputs([gpu])
    assert (inputs["driver"], inputs["has_timed_kernels"]) == ("535.216.01", True)
    assert list(inputs["cuda_packages"]) == ["numpy"]
    assert not {"driver", "cuda_packages"} & machine_inputs(jax.devices("cpu")[:1]).keys()


def test_a_gpu_that_is_only_compiled_for_has_the_key_that_a_start_on_it_also_takes():
    present = NamedDevice(0, "gpu", client=SimpleNamespace(platform_version="1"))
    absent = NamedDevice(0, "gpu", client=SimpleNamespace(platform_version="2", local_devices=list))
    of_compiler, of_start = (BundleKey(machine_inputs([device])) for device in (absent, present))
    assert of_start.without_device == of_compiler
    assert of_start != of_compiler
    assert of_compiler.without_device is None
    assert BundleKey(machine_inputs(jax.devices("cpu")[:1])).without_device is None


def test_the_tunings_of_a_gpu_are_in_its_key(tmp_path, monkeypatch):
    monkeypatch.setattr(tunings, "FOLDER", tmp_path)
    gpu = NamedDevice(0, "gpu", client=SimpleNamespace(platform_version="1"))
    assert machine_inputs([gpu])["tunings"] is None
    other = tmp_path / "other"
    other.mkdir()
    (other / tunings.file_name(gpu.device_kind)).write_bytes(tunings.sealed(b"entries {}\n", gpu.device_kind))
    monkeypatch.setattr(tunings, "FOLDER", other)
    assert machine_inputs([gpu])["tunings"] == hashlib.sha256(b"entries {}\n").hexdigest()
    assert "tunings" not in machine_inputs(jax.devices("cpu")[:1])


def test_the_version_of_the_project_is_in_the_key():
    assert machine_inputs(jax.devices("cpu")[:1])["service"]
