"""A model of sound or images does not start where nothing decodes them."""

from types import SimpleNamespace

import pytest

from service.errors import MissingExtra
from service.start import tasks
from service.start.tasks import check_packages

CHECKPOINT = SimpleNamespace(uri="gs://bucket/whisper")


@pytest.mark.parametrize("package", ["av", "PIL"])
def test_a_model_of_sound_or_images_names_the_package_that_is_missing(package, monkeypatch):
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=rf"gs://bucket/whisper.*{package}.*--extra media"):
        check_packages(None, CHECKPOINT, SimpleNamespace(media_package=package))
    check_packages(None, CHECKPOINT, SimpleNamespace(media_package=None))


@pytest.mark.parametrize("package", ["av", "PIL"])
def test_nothing_is_missing_where_it_is_installed(package):
    check_packages(None, CHECKPOINT, SimpleNamespace(media_package=package))
