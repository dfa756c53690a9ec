"""`levserve prewarm --all`: the bundles of a whole catalogue in one run, and what `--check` says of each model."""

import shutil

import pytest

from service.settings import Settings
from tests.encoder import tiny
from tests.served import prewarm

SETTINGS = {"max_prefill_tokens": "32"}


def by_model(lines):
    return {line["model"]: line.get("outcome") or line["message"] for line in lines if "model" in line}


@pytest.mark.slow
def test_every_geometry_of_a_catalogue_is_compiled_once_and_a_broken_model_stops_none(tmp_path):
    models = tmp_path / "models"
    for name, num_positions in (("a", 32), ("b", 32), ("c", 16)):
        (models / name).mkdir(parents=True)
        tiny.write_checkpoint(models / name, max_position_embeddings=num_positions)
    shutil.copytree(models / "a", models / "broken")
    (models / "broken/config.json").write_text('{"model_type": "nothing"}')
    settings = SETTINGS | {"catalogue_uri": str(models)}
    code, lines = prewarm(tmp_path / "cache", "--check", **settings)
    assert (code, {by_model(lines)[name] for name in "abc"}) == (1, {"miss"})
    code, lines = prewarm(tmp_path / "cache", "--all", **settings)
    assert code == 1
    made = {"a": "made", "b": "already there", "c": "made", "broken": "a model cannot be prewarmed"}
    assert by_model(lines) == made
    shutil.rmtree(models / "broken")
    code, lines = prewarm(tmp_path / "cache", "--check", **settings)
    assert (code, by_model(lines)) == (0, {"a": "hit", "b": "hit", "c": "hit"})


@pytest.mark.slow
def test_a_catalogue_is_prewarmed_when_asked_for_and_nothing_else_is(tmp_path):
    code, lines = prewarm(tmp_path, "--all", str(tmp_path))
    assert (code, "the settings name one model" in lines[-1]["message"]) == (1, True)
    code, lines = prewarm(tmp_path, catalogue_uri=str(tmp_path))
    assert (code, "--all: prewarms a catalogue" in lines[-1]["message"]) == (1, True)


def test_a_share_follows_from_the_file_or_from_the_number_of_models():
    from service.catalogue.entry import ModelEntry

    process = Settings(catalogue_uri="/models", max_cached_models=4)
    assert ModelEntry(name="a", uri="/a").share(process) == 0.25
    assert ModelEntry(name="a", uri="/a", memory_share=0.5).share(process) == 0.5
