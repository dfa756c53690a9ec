"""The kind of model that a checkpoint is, and what an operator may say of each kind."""

from types import SimpleNamespace

import pytest

from service.errors import SettingsError
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.context import StartContext
from service.start.progress import StartProgress
from service.start.tasks import import_choice
from service.text.generation_defaults import NO_DEFAULTS, GenerationDefaults
from tests.encoder import tiny


def choice(hub_config, defaults):
    metrics = Metrics()
    context = StartContext(Settings(), metrics, StartProgress(metrics), defaults=defaults)
    checkpoint = SimpleNamespace(uri="/models/a", hub_config=hub_config, sentence_files={})
    return import_choice(context, checkpoint).__name__


def test_defaults_of_generation_are_refused_for_an_encoder():
    decoder, defaults = {"model_type": "llama"}, GenerationDefaults(temperature=0.2)
    assert choice(decoder, defaults) == "choose_engine_spec"
    assert choice(tiny.CONFIG, NO_DEFAULTS) == "choose_encoder_spec"
    with pytest.raises(SettingsError, match="MODELS_CONFIG: /models/a is an encoder, which has no 'defaults'"):
        choice(tiny.CONFIG, defaults)
