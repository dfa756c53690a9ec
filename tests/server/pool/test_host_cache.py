"""Models that leave an accelerator and come back from the host's memory; devices of a CPU that has several stand in."""

import pytest

from tests.process import ServiceProcess, running_service
from tests.served import DEMO, SMALL
from tests.server.pool.test_several_models import text, write_models

pytestmark = pytest.mark.slow

DEMO_BYTES = (DEMO / "model.safetensors").stat().st_size
DEVICES = {"xla_flags": "--xla_force_host_platform_device_count=2", "tensor_parallel": 2}


def test_a_model_that_was_unloaded_is_back_without_reading_its_weights(tmp_path, one_sequence):
    models = write_models(tmp_path / "models", ("a", "b"))
    settings = {"local_model_cache": tmp_path / "cache", "catalogue_uri": models, "max_cached_models": 1} | SMALL
    for _ in ("cold", "warm"):
        with running_service(**settings, **DEVICES, host_cache_bytes=10 * DEMO_BYTES) as service:
            answers = {name: text(service, name, "The sky is") for name in ("a", "b")}
            assert answers["a"] != answers["b"]
            for name in ("a", "b", "a", "b"):
                assert text(service, name, "The sky is") == answers[name]
            starts = [line for line in service.log if line.get("phase") == "weights"]
            assert [line["is_from_host_cache"] for line in starts] == [False, False, True, True, True, True]


def test_a_cpu_has_no_other_memory_to_keep_weights_in(tmp_path):
    process = ServiceProcess(local_model_cache=tmp_path, host_cache_bytes=1)
    assert process.exit_code == 1
    assert any("HOST_CACHE_BYTES" in line.get("message", "") for line in process.log)
