"""Folders of one listing that hold a checkpoint are models."""

import pytest

from service.catalogue.listing import list_models, models_of, newest_step
from service.errors import MissingFile
from service.storage.location import GcsLocation, LocalLocation
from service.storage.objects import ObjectInfo

WEIGHTS = ("model.safetensors", "config.json")


def objects(*names, generation=1):
    return [ObjectInfo(name, 10, "AAAAAA==", generation) for name in names]


def names(*listed):
    return [model.name for model in models_of("gs://b", objects(*listed))]


def test_folders_with_weights_and_a_configuration_are_models():
    assert names("a/model.safetensors", "a/config.json", "b/notes.txt", "top.safetensors") == ["a"]


def test_a_checkpoint_without_its_configuration_is_still_being_uploaded():
    assert names("a/model.safetensors") == []


def test_a_folder_below_one_that_is_no_model_has_the_names_of_both():
    nested = [f"org/{model}/{name}" for model in ("x", "y") for name in WEIGHTS]
    assert names(*nested, *(f"deep/er/than/{name}" for name in WEIGHTS)) == ["org/x", "org/y"]


def test_hidden_folders_are_none():
    assert names(*(f".levserve-bundles/{name}" for name in WEIGHTS), *(f"o/.x/{name}" for name in WEIGHTS)) == []


def test_a_run_of_levanter_is_one_model_with_its_newest_complete_step():
    steps = [f"run/step-{n}/{name}" for n in (9, 100) for name in ("metadata.json", "manifest.ocdbt")]
    [model] = models_of("gs://b", objects(*steps, "run/step-200/manifest.ocdbt", "run/config.yaml"))
    assert (model.name, model.step) == ("run", 100)


def test_the_newest_complete_step_of_a_run_is_found_in_one_listing_of_it(tmp_path):
    for step in (9, 100):
        (tmp_path / f"run/step-{step}").mkdir(parents=True)
        for name in ("metadata.json", "manifest.ocdbt"):
            (tmp_path / f"run/step-{step}" / name).write_text("{}")
    (tmp_path / "run/step-200").mkdir()
    (tmp_path / "run/step-200/manifest.ocdbt").write_text("half written")
    assert newest_step(LocalLocation(tmp_path / "run"), emulator_host=None).step == 100
    with pytest.raises(MissingFile, match="not a Levanter run"):
        newest_step(LocalLocation(tmp_path / "run/step-9"), emulator_host=None)


def test_a_hostile_folder_is_left_out():
    assert names(*(f"a,b/{name}" for name in WEIGHTS), *(f"ok/{name}" for name in WEIGHTS)) == ["ok"]


def test_another_version_of_a_file_is_another_version_of_the_model():
    files = [f"a/{name}" for name in WEIGHTS]
    [old], [same], [new] = (models_of("gs://b", objects(*files, generation=n)) for n in (1, 1, 2))
    assert old == same
    assert old.version != new.version


def test_a_thousand_models_take_one_listing(gcs_bucket):
    for i in range(3):
        for name in WEIGHTS:
            gcs_bucket.upload(f"models/m{i}/{name}", b"x")
    gcs_bucket.upload("models/bad\\name/config.json", b"x")
    gcs_bucket.upload("elsewhere/m9/config.json", b"x")
    before = len(gcs_bucket.server.proxy.requests())
    found = list_models(GcsLocation(gcs_bucket.name, "models"), emulator_host=gcs_bucket.endpoint)
    assert [model.name for model in found] == ["m0", "m1", "m2"]
    assert len(gcs_bucket.server.proxy.requests()) - before == 1


def test_a_folder_of_this_machine_is_listed_alike(tmp_path):
    for name in WEIGHTS:
        (tmp_path / "org" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "org" / "a" / name).write_bytes(b"x")
    assert [model.name for model in list_models(LocalLocation(tmp_path), emulator_host=None)] == ["org/a"]


def test_an_empty_catalogue_has_no_models(tmp_path):
    assert list_models(LocalLocation(tmp_path), emulator_host=None) == ()


ADAPTER = ("adapter_model.safetensors", "adapter_config.json")


def test_a_folder_with_an_adapter_is_a_model_and_a_run_of_them_has_its_newest_step():
    own = [f"support/{name}" for name in ADAPTER]
    run = [f"run/step-{step}/{name}" for step in (9, 100) for name in ADAPTER]
    [found, support] = models_of("gs://b", objects(*own, *run, "run/step-200/adapter_config.json"))
    assert [(m.name, m.step, m.is_adapter) for m in (found, support)] == [("run", 100, True), ("support", None, True)]
    assert found.version != support.version


def test_a_checkpoint_in_whose_folder_an_adapter_is_left_is_a_checkpoint():
    [model] = models_of("gs://b", objects(*(f"a/{name}" for name in (*WEIGHTS, *ADAPTER))))
    assert not model.is_adapter
