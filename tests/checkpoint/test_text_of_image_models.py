"""Models whose configuration has a part that reads images, saved with it, without it, and with some of it."""

import logging
import re

import numpy as np
import pytest

from service.errors import MalformedCheckpoint
from service.models.decoder_weights import decoder_weight_specs
from tests.checkpoint.test_names_of_tensors import described, load, write
from tests.parity import vision_cases

CASES = {
    "idefics3": (vision_cases.CONFIG, vision_cases.tensors),
    "qwen3_vl": (vision_cases.QWEN_CONFIG, vision_cases.qwen_tensors),
    "qwen3_5": (vision_cases.QWEN35_CONFIG, vision_cases.qwen35_tensors),
    "gemma3": (vision_cases.GEMMA_CONFIG, vision_cases.gemma_tensors),
    "mistral3": (vision_cases.MISTRAL_CONFIG, vision_cases.mistral_tensors),
    "gemma4": (
        vision_cases.GEMMA4_CONFIGS["gemma4_vision"],
        lambda: vision_cases.gemma4_tensors("gemma4_vision"),
    ),
}
OF_IMAGES = re.compile(r"vision|visual|connector|multi_modal_projector")
# What the names of the text begin with in a whole model, where its own class has `model.`.
TEXT_CLASS = re.compile(r"^(model\.language_model|language_model\.model|model\.text_model|language_model)\.(?!lm_head)")

each_model = pytest.mark.parametrize("name", CASES)


def parts_of(name):
    config, tensors = CASES[name]
    everything = tensors()
    text = {tensor: value for tensor, value in everything.items() if not OF_IMAGES.search(tensor)}
    assert 0 < len(text) < len(everything)
    return config, text, {tensor: value for tensor, value in everything.items() if tensor not in text}


@each_model
@pytest.mark.parametrize("in_shards", [False, True])
def test_a_model_saved_without_what_reads_images_is_served_as_text(tmp_path, name, in_shards, caplog):
    config, text, _ = parts_of(name)
    names = sorted(text)
    halves = [{key: text[key] for key in names[half::2]} for half in range(2)] if in_shards else [text]
    folder = write(tmp_path / "text", config, *halves)
    with caplog.at_level(logging.WARNING):
        model = described(folder)[1]
    assert model.image_encoder is None
    assert "its text alone" in caplog.text
    assert load(folder).keys() == {spec.name for spec in decoder_weight_specs(model)}


@each_model
@pytest.mark.parametrize("wrapper", ["", "module.", "base_model.model."])
def test_a_text_that_its_own_class_saved_is_served_beside_the_configuration_of_the_whole(tmp_path, name, wrapper):
    config, text, _ = parts_of(name)
    own = {wrapper + TEXT_CLASS.sub("model.", tensor): value for tensor, value in text.items()}
    folder = write(tmp_path / "own", config, own)
    expected = load(write(tmp_path / "text", config, text))
    found = load(folder)
    assert described(folder)[1].image_encoder is None
    assert found.keys() == expected.keys()
    for spec in expected:
        np.testing.assert_array_equal(found[spec], expected[spec])


@each_model
def test_a_whole_model_reads_images(tmp_path, name):
    config, text, others = parts_of(name)
    assert described(write(tmp_path / "whole", config, text | others))[1].image_encoder is not None


@each_model
def test_a_part_of_what_reads_images_is_refused_by_the_name_of_what_is_missing(tmp_path, name):
    config, text, others = parts_of(name)
    *some, left_out = sorted(others)
    folder = write(tmp_path / "part", config, text | {tensor: others[tensor] for tensor in some})
    with pytest.raises(MalformedCheckpoint, match=f"{re.escape(left_out.rsplit('.', 2)[-2])}.*missing"):
        load(folder)
