"""`MODEL_URI=gs://…`: the same text as from disk, whatever lies behind the address."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.fault_proxy import Fault
from tests.process import ServiceProcess, running_service
from tests.served import CACHE, DEMO, demo_tensors

pytestmark = pytest.mark.usefixtures("cold_start")

QUESTIONS = 3
# What the first service of the session compiled: the same model, from wherever it comes.
BUNDLES = CACHE / "bundles"


def answers_of(service, demo_answers) -> list[str | None]:
    client = service.client()
    [model] = client.models.list().data
    return [
        client.chat.completions.create(
            model=model.id, messages=[{"role": "user", "content": pair["question"]}], temperature=0
        )
        .choices[0]
        .message.content
        for pair in demo_answers[:QUESTIONS]
    ]


def shard(folder) -> None:
    """Write the demo model as two files and an index."""
    shutil.copytree(DEMO, folder)
    tensors = demo_tensors()
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for index, names in enumerate(np.array_split(sorted(tensors), 2), start=1):
        file = f"model-{index:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names.tolist()}, folder / file)
        weight_map |= dict.fromkeys(names.tolist(), file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    "kind", ["one file", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sharded", "levanter run"))]
)
@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_in_a_bucket_gives_the_text_that_it_gives_from_disk(tmp_path, gcs_bucket, demo_answers, kind):
    folder = tmp_path / "checkpoint"
    if kind == "sharded":
        shard(folder)
    elif kind == "levanter run":
        from tests.levanter_run import save_step

        folder.mkdir()
        config = json.loads((DEMO / "config.json").read_text())
        weights = {name: t.astype(np.float32) for name, t in demo_tensors().items()}
        save_step(folder, 20, config, weights)
        # An older step and one that was never finished, neither of which may be taken.
        save_step(folder, 10, config, {name: t * 0 for name, t in weights.items()})
        (folder / "step-30").mkdir()
        (folder / "step-30" / "manifest.ocdbt").write_bytes(b"half written")
        for file in DEMO.iterdir():
            if file.suffix in (".json", ".jinja"):
                shutil.copy(file, folder)
    else:
        shutil.copytree(DEMO, folder)
    gcs_bucket.upload_directory(folder, "models/tiny")
    settings = {
        "model_uri": gcs_bucket.uri("models/tiny"),
        "storage_emulator_host": gcs_bucket.endpoint,
        "local_model_cache": tmp_path / "cache",
        "bundle_uri": BUNDLES,
    }
    with running_service(**settings) as service:
        assert answers_of(service, demo_answers) == [pair["answer"] for pair in demo_answers[:QUESTIONS]]
        if kind == "levanter run":
            assert service.wait_for("found a Levanter checkpoint", timeout_s=60)["step"] == 20


def test_faults_on_the_way_do_not_change_the_text(tmp_path, gcs_bucket, demo_answers):
    gcs_bucket.upload_directory(DEMO, "tiny")
    gcs_bucket.faults(
        [
            Fault("alt=media", status=503, times=3),
            Fault("safetensors.*alt=media", flipped_byte=100_000),
            Fault("safetensors.*alt=media", cut_after_bytes=300_000, skip=1),
        ]
    )
    settings = {
        "storage_emulator_host": gcs_bucket.endpoint,
        "local_model_cache": tmp_path / "cache",
        "bundle_uri": BUNDLES,
    }
    with running_service(model_uri=gcs_bucket.uri("tiny"), **settings) as service:
        assert len(gcs_bucket.hits()) >= 5
        assert answers_of(service, demo_answers) == [pair["answer"] for pair in demo_answers[:QUESTIONS]]


def test_weights_that_stay_corrupt_are_refused_and_never_served(tmp_path, gcs_bucket):
    gcs_bucket.upload_directory(DEMO, "tiny")
    gcs_bucket.faults([Fault("safetensors.*alt=media", flipped_byte=100_000, times=100)])
    settings = {
        "storage_emulator_host": gcs_bucket.endpoint,
        "local_model_cache": tmp_path / "cache",
        "bundle_uri": BUNDLES,
    }
    with ServiceProcess(model_uri=gcs_bucket.uri("tiny"), **settings) as service:
        assert service.exit_code == 1
    assert "model.safetensors: crc32c is" in service.log[-1]["message"]
    assert "ready" not in [line["message"] for line in service.log]


def test_the_catalogue_settings_name_a_model(tmp_path, gcs_bucket):
    gcs_bucket.upload_directory(DEMO, "catalogue/org-tiny")
    settings = {
        "gcs_bucket": gcs_bucket.name,
        "gcs_model_prefix": "catalogue",
        "model_name": "org/tiny",
        "storage_emulator_host": gcs_bucket.endpoint,
        "local_model_cache": tmp_path / "cache",
        "bundle_uri": BUNDLES,
    }
    with running_service(**settings) as service:
        assert [model.id for model in service.client().models.list()] == ["org/tiny"]
