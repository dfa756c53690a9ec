"""A model that hears does not start where nothing decodes recordings."""

from types import SimpleNamespace

import pytest

from service.errors import UnsupportedModel
from service.start import tasks
from service.start.tasks import check_packages

CHECKPOINT = SimpleNamespace(uri="gs://bucket/whisper")


def test_a_model_that_hears_names_the_package_that_is_missing(monkeypatch):
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedModel, match=r"gs://bucket/whisper.*hears.*pip install 'levserve\[media\]'"):
        check_packages(None, CHECKPOINT, SimpleNamespace(hears=True))
    check_packages(None, CHECKPOINT, SimpleNamespace(hears=False))


def test_nothing_is_missing_where_it_is_installed():
    check_packages(None, CHECKPOINT, SimpleNamespace(hears=True))
