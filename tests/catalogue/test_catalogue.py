"""Described and listed models make one catalogue, which a refresh brings up to date."""

import pytest

from service.catalogue.catalogue import Catalogue
from service.catalogue.entry import ListedModel, ModelEntry
from service.errors import SettingsError, TransferFailed, UnknownModel


class Folder:
    """A listing that a test changes."""

    def __init__(self, *names, **steps):
        self.num_listings = 0
        self.models = [ListedModel(name, f"v-{name}", None) for name in names]
        self.models += [ListedModel(name, f"v{step}", step) for name, step in steps.items()]

    def __call__(self):
        self.num_listings += 1
        return self.models


def refreshed(folder, *described, selected=()):
    catalogue = Catalogue(described, uri="gs://b", listing=folder, selected=selected)
    catalogue.refresh()
    return catalogue


def test_a_checkpoint_that_training_has_just_written_appears():
    folder = Folder("a")
    catalogue = refreshed(folder)
    with pytest.raises(UnknownModel):
        catalogue.find("b")
    folder.models.append(ListedModel("b", "v", None))
    catalogue.refresh()
    assert catalogue.find("b").uri == "gs://b/b"


def test_a_look_up_lists_nothing():
    folder = Folder("a")
    catalogue = refreshed(folder)
    catalogue.find("a")
    for name in ("x", "../a"):
        with pytest.raises(UnknownModel):
            catalogue.find(name)
    assert folder.num_listings == 1


def test_a_listing_that_fails_leaves_the_catalogue_as_it_was():
    folder = Folder("a")
    catalogue = refreshed(folder)

    class Fails(list):
        def __iter__(self):
            raise TransferFailed("gs://b", "listing", "no connection")

    folder.models = Fails()
    with pytest.raises(TransferFailed):
        catalogue.refresh()
    assert catalogue.find("a").name == "a"


def test_a_described_model_without_an_address_is_the_listed_folder():
    described = ModelEntry(name="org/chat", uri="", aliases=("chat",), max_model_len=64)
    catalogue = refreshed(Folder("org-chat", "other"), described)
    assert [entry.name for entry in catalogue.entries] == ["org/chat", "other"]
    found = catalogue.find("chat")
    assert (found.uri, found.version, found.max_model_len) == ("gs://b/org-chat", "v-org-chat", 64)
    assert catalogue.find("org-chat") is found


def test_a_described_model_that_is_not_listed_is_not_served():
    assert refreshed(Folder("a"), ModelEntry(name="b", uri="")).entries == refreshed(Folder("a")).entries


def test_the_selected_models_are_all_there_is_and_are_preloaded():
    catalogue = refreshed(Folder("org-a", "b", "c"), selected=("org/a", "b"))
    assert [(entry.name, entry.is_preloaded) for entry in catalogue.entries] == [("org-a", True), ("b", True)]
    assert catalogue.find("org/a").names == ("org-a", "org/a")


def test_a_wanted_model_that_is_not_there_stops_the_start():
    with pytest.raises(SettingsError, match=r"MODELS: 'chatt' is not in the catalogue\. Did you mean 'chat'\?"):
        refreshed(Folder("chat"), selected=("chatt",))


def test_a_pinned_run_stays_at_its_step_and_another_moves_on():
    folder = Folder(a=1, b=1)
    catalogue = refreshed(folder, ModelEntry(name="b", uri="", pin="latest"))
    assert {entry.name: entry.uri for entry in catalogue.entries} == {"a": "gs://b/a/step-1", "b": "gs://b/b/step-1"}
    before = catalogue.find("b").version
    folder.models = Folder(a=2, b=2).models
    catalogue.refresh()
    assert {entry.name: entry.uri for entry in catalogue.entries} == {"a": "gs://b/a/step-1", "b": "gs://b/b/step-2"}
    assert catalogue.find("b").version != before


class Runs:
    """Runs whose newest step a test changes."""

    def __init__(self, **steps):
        self.steps = steps
        self.num_listings = 0

    def __call__(self, uri):
        self.num_listings += 1
        name = uri.rstrip("/").rpartition("/")[2]
        if self.steps[name] is None:
            raise TransferFailed(uri, "listing", "no connection")
        return ListedModel(uri, f"v{self.steps[name]}", self.steps[name])


def described_runs(runs):
    latest = ModelEntry(name="latest", uri="gs://runs/a/", pin="latest", is_run=True)
    fixed = ModelEntry(name="fixed", uri="gs://runs/b", pin="step", is_run=True)
    return Catalogue([latest, fixed, ModelEntry(name="plain", uri="gs://runs/c")], newest_step=runs)


def test_a_described_run_moves_on_or_stays_as_its_pin_says():
    runs = Runs(a=1, b=1)
    catalogue = described_runs(runs)
    assert catalogue.is_listed
    catalogue.refresh()
    found = {entry.name: (entry.uri, entry.version) for entry in catalogue.entries}
    plain = ("gs://runs/c", "")
    assert found == {"latest": ("gs://runs/a/step-1", "v1"), "fixed": ("gs://runs/b/step-1", "v1"), "plain": plain}
    runs.steps = {"a": 2, "b": 2}
    catalogue.refresh()
    found = {entry.name: (entry.uri, entry.version) for entry in catalogue.entries}
    assert found == {"latest": ("gs://runs/a/step-2", "v2"), "fixed": ("gs://runs/b/step-1", "v1"), "plain": plain}
    assert runs.num_listings == 3  # one that stays is listed once


def test_a_run_that_cannot_be_listed_stays_at_its_step_and_stops_a_start():
    runs = Runs(a=1, b=1)
    catalogue = described_runs(runs)
    catalogue.refresh()
    runs.steps = {"a": None, "b": None}
    catalogue.refresh()
    assert catalogue.find("latest").uri == "gs://runs/a/step-1"
    with pytest.raises(TransferFailed):
        described_runs(runs).refresh()


def test_a_catalogue_that_follows_nothing_is_not_listed():
    assert not Catalogue([ModelEntry(name="a", uri="gs://runs/a", pin="step", is_run=True)]).is_listed
