"""AUTO_DOWNLOAD_MODELS=false: what is on this machine is served, anything else is refused by name."""

import pytest

from service.errors import NotDownloaded
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.context import StartContext
from service.start.discover import locate_checkpoint
from service.start.progress import StartProgress
from tests.served import DEMO


def located(uri, cache, emulator_host=None):
    settings = Settings(
        model_uri=str(uri), local_model_cache=cache, storage_emulator_host=emulator_host, auto_download_models=False
    )
    context = StartContext(settings, Metrics(), StartProgress(Metrics()))
    return context, locate_checkpoint(context)


def test_a_folder_is_served(tmp_path):
    assert located(DEMO, tmp_path)[1].uri == str(DEMO)


def test_a_checkpoint_of_a_bucket_is_refused_until_it_is_in_the_cache(gcs_bucket, tmp_path):
    gcs_bucket.upload_directory(DEMO, "demo")
    place = (gcs_bucket.uri("demo"), tmp_path, gcs_bucket.endpoint)
    with pytest.raises(NotDownloaded, match="is not in LOCAL_MODEL_CACHE, and AUTO_DOWNLOAD_MODELS is false"):
        located(*place)
    assert not list(tmp_path.rglob("*.safetensors"))
    settings = Settings(model_uri=place[0], local_model_cache=tmp_path, storage_emulator_host=place[2])
    context = StartContext(settings, Metrics(), StartProgress(Metrics()))
    weights = locate_checkpoint(context).weights
    weights.source.pull(weights.objects, context.cache, context.progress.pulled).release()
    gcs_bucket.faults([])
    assert located(*place)[1].uri == place[0]
    assert not [path for path in gcs_bucket.media_requests() if "safetensors" in path]
