"""Listed adapters are models of their own beside their base models; those of other bases are named and left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.catalogue.catalogue import Catalogue
from service.catalogue.entry import ListedModel, ModelEntry
from service.catalogue.sources import catalogue_of_settings
from service.errors import InvalidParameter, RefusedAdapter, UnknownModel
from service.settings import Settings


class Adapters:
    """A listing with a base and adapters, and the reading of their configurations, which a test changes."""

    def __init__(self, **bases: str | None) -> None:
        self.bases = bases
        self.read: list[str] = []
        self.models = [ListedModel("org-base", "v0", None), ListedModel("other", "v0", None)]
        self.models += [ListedModel(name, "v1", None, is_adapter=True) for name in bases]

    def base_of(self, uri: str) -> str | None:
        name = uri.removeprefix("gs://b/")
        self.read.append(name)
        if self.bases[name] == "dora":
            raise RefusedAdapter(uri, "adapter_config.json", "use_dora", "DoRA is not served")
        return self.bases[name]

    def catalogue(self, *described: ModelEntry, **options: Any) -> Catalogue:
        made = Catalogue(described, uri="gs://b", listing=lambda: self.models, read_base=self.base_of, **options)
        made.refresh()
        return made


@pytest.mark.parametrize(
    "base", ["org/base", "org-base", "gs://b/org-base/", "/data/org-base", "gs://elsewhere/org-base"]
)
def test_an_adapter_is_loaded_as_its_base_with_the_adapter(base: str):
    entry = Adapters(support=base).catalogue().find("support")
    assert (entry.uri, entry.adapter_uri, entry.base) == ("gs://b/org-base", "gs://b/support", "org-base")
    settings = entry.settings(Settings(catalogue_uri="gs://b"))
    assert (settings.model_uri, settings.adapter_uri, settings.model_name) == (
        "gs://b/org-base",
        "gs://b/support",
        "support",
    )


def test_a_model_and_its_adapters_are_loaded_and_evicted_apart():
    catalogue = Adapters(one="org/base", two="org/base").catalogue()
    assert len({catalogue.find(name).address for name in ("org/base", "one", "two")}) == 3


def test_an_adapter_without_a_base_that_is_served_is_named_and_left_out(caplog: pytest.LogCaptureFixture):
    catalogue = Adapters(stray="org/absent", broken="dora", bare=None, good="other").catalogue()
    assert {entry.name for entry in catalogue.entries} == {"org-base", "other", "good"}
    with pytest.raises(UnknownModel):
        catalogue.find("stray")
    reasons = [record.__dict__.get("reason", record.__dict__.get("base")) for record in caplog.records]
    assert {"org/absent", ""} <= set(reasons)
    assert any("DoRA is not served" in str(reason) for reason in reasons)


def test_an_adapter_takes_no_name_of_a_model(caplog: pytest.LogCaptureFixture):
    catalogue = Adapters(chat="org/base").catalogue(ModelEntry(name="org/base", uri="", aliases=("chat",)))
    assert catalogue.find("chat").adapter_uri is None
    assert "an adapter has the name of a model" in caplog.text


def test_a_described_adapter_has_its_own_names_and_options():
    described = ModelEntry(name="support", uri="", aliases=("help",), max_model_len=64, is_preloaded=True)
    entry = Adapters(support="org/base").catalogue(described).find("help")
    assert (entry.name, entry.max_model_len, entry.is_preloaded) == ("support", 64, True)
    assert (entry.uri, entry.adapter_uri) == ("gs://b/org-base", "gs://b/support")


def test_options_of_the_base_hold_for_its_adapters_but_for_what_concerns_its_stay_in_memory():
    base = ModelEntry(
        name="org/base", uri="", max_model_len=64, quantization="int8", is_preloaded=True, keeps_loaded=True
    )
    entry = Adapters(support="org/base").catalogue(base).find("support")
    assert (entry.max_model_len, entry.quantization, entry.names) == (64, "int8", ("support",))
    assert not entry.is_preloaded
    assert not entry.keeps_loaded


def test_a_configuration_is_read_once_for_each_version():
    adapters = Adapters(support="org/base")
    catalogue = adapters.catalogue()
    catalogue.refresh()
    assert adapters.read == ["support"]
    adapters.models[-1] = ListedModel("support", "v2", None, is_adapter=True)
    before = catalogue.find("support").version
    catalogue.refresh()
    assert adapters.read == ["support"] * 2
    assert catalogue.find("support").version != before


def test_the_newest_adapter_of_a_run_is_loaded():
    adapters = Adapters(run="org/base")
    adapters.models[-1] = ListedModel("run", "v1", 7, is_adapter=True)
    assert adapters.catalogue().find("run").adapter_uri == "gs://b/run/step-7"


def test_an_operators_adapter_is_served_while_its_base_is_and_no_model_takes_its_name():
    adapters = Adapters(listed="org/base", late="org/base")
    adapters.models.pop()  # it lies deeper than a listing looks
    catalogue = adapters.catalogue(has_slots=True)
    entry = catalogue.adapter_of("help", "late")
    assert (entry.base, entry.adapter_uri, entry.has_slot) == ("org-base", "gs://b/late", True)
    assert catalogue.add(entry) is None
    catalogue.refresh()
    assert catalogue.find("help") == entry
    newer = catalogue.adapter_of("help", "gs://b/late/", in_place=True)
    assert catalogue.add(newer, in_place=True) == entry
    assert catalogue.remove("listed") is None
    adapters.models.append(ListedModel("help", "v0", None))
    catalogue.refresh()
    assert catalogue.find("help").adapter_uri is None
    catalogue.add(catalogue.adapter_of("assist", "late"))
    del adapters.models[0]
    catalogue.refresh()
    assert {name for entry in catalogue.entries for name in entry.names} == {"other", "help"}


@pytest.mark.parametrize("name", ["listed", "org/base", "a,b", "../a", "", "a" * 201, "a\n"])
def test_an_operators_adapter_takes_no_name_that_is_taken_or_none(name: str):
    catalogue = Adapters(listed="org/base").catalogue(has_slots=True)
    for in_place in (False, True):
        with pytest.raises(InvalidParameter) as refused:
            catalogue.adapter_of(name, "listed", in_place=in_place)
        assert refused.value.param == "lora_name"


def test_an_operators_adapter_needs_a_base_among_the_models_that_are_served():
    adapters = Adapters(one="org/base", two="other", three="org/absent", of_adapter="one")
    catalogue = adapters.catalogue(has_slots=True, selected=("org-base",))
    catalogue.add(catalogue.adapter_of("late", "one"))
    assert {entry.name for entry in catalogue.entries} == {"org-base", "late"}
    for path in ("two", "three", "of_adapter"):
        with pytest.raises(RefusedAdapter, match=r"base_model_name_or_path: is '.*', which is no model"):
            catalogue.adapter_of("later", path)


def test_a_folder_of_models_and_adapters_is_one_catalogue(tmp_path: Path):
    (tmp_path / "base").mkdir()
    for name in ("model.safetensors", "config.json"):
        (tmp_path / "base" / name).write_text("{}")
    (tmp_path / "support").mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": "someone/base"}
    (tmp_path / "support" / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "support" / "adapter_model.safetensors").write_bytes(b"")
    catalogue = catalogue_of_settings(Settings(catalogue_uri=str(tmp_path), local_model_cache=tmp_path / "cache"))
    catalogue.refresh()
    assert {entry.name: entry.base for entry in catalogue.entries} == {"base": None, "support": "base"}
