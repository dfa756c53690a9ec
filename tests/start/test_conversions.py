"""`levserve prewarm` of a Levanter checkpoint: the next start serves the same text and imports no Levanter."""

import json
import shutil

import numpy as np
import pytest

from tests.levanter_run import save_step
from tests.process import running_service
from tests.served import DEMO, SMALL, answers_of, demo_tensors, outcomes_of, prewarm, stats_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tensors = {name: tensor.astype(np.float32) for name, tensor in demo_tensors().items()}
    save_step(folder, 3, json.loads((DEMO / "config.json").read_text()), tensors)
    for name in (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ):
        shutil.copy(DEMO / name, folder / name)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_a_start_after_prewarm_reads_the_converted_weights(run, one_sequence, tmp_path, gcs_bucket, demo_answers):
    # The bundle of the same model; what is new are the weights.
    shutil.copytree(one_sequence.cache / "bundles", tmp_path / "builder" / "bundles")
    gcs_bucket.upload_directory(run, "run")
    uri = gcs_bucket.uri("run")
    settings = {
        "bundle_uri": gcs_bucket.uri("shared"),
        "storage_emulator_host": gcs_bucket.endpoint,
        **SMALL,
    }
    code, lines = prewarm(tmp_path / "builder", uri, **settings)
    assert code == 0, lines
    assert gcs_bucket.uri("shared/converted") in lines[-1]["converted_weights"]
    with running_service(
        model_uri=uri,
        model_name="levserve-demo",
        local_model_cache=tmp_path / "server",
        admin_api_key="operator",
        **settings,
    ) as service:
        assert outcomes_of(service) == {"hit": 1}
        stats = stats_of(service)
        assert (stats["heavy_imports"], stats["compiles"], stats["traces"]) == ([], 0, 0)
        assert answers_of(service, demo_answers[:3]) == [pair["answer"] for pair in demo_answers[:3]]


@pytest.mark.filterwarnings("ignore")
def test_another_version_of_the_checkpoint_is_not_served_from_the_old_conversion(run, tmp_path):
    from service.checkpoint.conversion import conversion_name
    from service.storage.source import open_source

    def name_now() -> str | None:
        return conversion_name(str(run), lambda location: open_source(location, cache_root=tmp_path), [])

    before = name_now()
    assert before == name_now()
    (run / "config.json").write_text((run / "config.json").read_text() + "\n")
    assert name_now() != before
    assert conversion_name(str(DEMO), lambda location: open_source(location, cache_root=tmp_path), []) is None


@pytest.mark.filterwarnings("ignore")
def test_what_another_machine_converted_is_not_converted_again(run, tmp_path):
    from service.checkpoint import conversion as converted
    from service.checkpoint.discover import locate
    from service.checkpoint.layout import CONVERSION_MARKER
    from service.settings import Settings
    from service.start.conversions import store_conversion
    from service.storage.source import open_source

    def opener(location):
        return open_source(location, cache_root=tmp_path / "cache")

    name = converted.conversion_name(str(run), opener, [None, None])
    there = tmp_path / "shared" / converted.FOLDER / name
    there.mkdir(parents=True)
    (there / CONVERSION_MARKER).write_text("{}")
    settings = Settings(bundle_uri=str(tmp_path / "shared"), local_model_cache=tmp_path / "cache")
    assert store_conversion(settings, locate(str(run), opener), str(run), opener) == []
    assert not (tmp_path / "cache" / converted.FOLDER).exists()
