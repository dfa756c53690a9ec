"""A disk that is full while a model of a catalogue is loaded: the model is served without a copy, or says why not."""

import shutil

import pytest

from tests.process import running_service
from tests.served import DEMO, SMALL
from tests.server.pool.test_several_models import complete, reports, text
from tests.storage.cache.test_cache import mounted

pytestmark = pytest.mark.slow

WEIGHTS_BYTES = (DEMO / "model.safetensors").stat().st_size


def test_a_disk_that_is_full_costs_no_model_and_no_answer(gcs_bucket, one_sequence, tmp_path):
    for name in ("first", "second"):
        gcs_bucket.upload_directory(DEMO, name)
    # One copy of the weights fits, beside the bundle.
    bundle_bytes = sum(file.stat().st_size for file in one_sequence.cache.rglob("*") if file.is_file())
    size = f"size={bundle_bytes + WEIGHTS_BYTES + WEIGHTS_BYTES // 2}"
    with mounted(tmp_path / "cache", size) as cache:
        shutil.copytree(one_sequence.cache, cache, dirs_exist_ok=True)
        bucket = {"gcs_bucket": gcs_bucket.name, "storage_emulator_host": gcs_bucket.endpoint}
        settings = SMALL | bucket | {"local_model_cache": cache, "max_cached_models": 2, "admin_api_key": "operator"}
        with running_service(**settings) as service:
            expected = text(service, "first", "The sky is")
            answer = complete(service, "second", "The sky is")
            told = [line for line in service.log if "the cache cannot keep" in line.get("message", "")]
            assert (answer.status_code, bool(told)) == (200, True), answer.text
            assert answer.json()["choices"][0]["text"] == expected
            assert text(service, "first", "The sky is") == expected
            assert {report["failure"] for report in reports(service)} == {None}
