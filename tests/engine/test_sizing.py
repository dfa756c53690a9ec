"""How much fits, from plain numbers."""

import pytest

from service.engine.sizing import ModelSize, fit_engine
from service.errors import DoesNotFit, SettingsError

MODEL = ModelSize(context_len=4096, vocab_size=1000, weights_bytes=1_000_000_000, kv_bytes_per_token=10_000)


def fit(memory_bytes, **changes):
    wanted = {"max_num_seqs": 16, "page_size": 16, "max_prefill_tokens": 256, "max_model_len": None} | changes
    return fit_engine(MODEL, memory_bytes=memory_bytes, **wanted)


def test_with_room_for_all_every_slot_has_its_whole_context():
    shapes = fit(10_000_000_000)
    assert (shapes.max_context, shapes.num_pages, shapes.num_slots) == (4096, 16 * 4096 // 16, 16)


def test_with_less_room_there_are_fewer_pages_than_all_slots_could_fill():
    shapes = fit(1_400_000_000)
    assert shapes.max_context == 4096 > 16 * shapes.num_pages // 16
    assert shapes.num_pages * 160_000 < 400_000_000


def test_a_few_megabytes_more_or_less_give_the_same_shapes():
    assert len({fit(1_400_000_000 + change * 1_000_000).num_pages for change in range(-5, 6)}) == 1


def test_with_little_room_the_context_is_cut():
    assert fit(1_040_000_000).max_context < 4096


def test_what_cannot_fit_is_refused_with_both_numbers():
    with pytest.raises(DoesNotFit) as refusal:
        fit(1_010_000_000)
    assert refusal.value.available_bytes == 1_010_000_000 < refusal.value.needed_bytes
    with pytest.raises(DoesNotFit):
        fit(1_040_000_000, max_model_len=4096)


def test_more_context_than_the_model_has_is_a_wrong_setting():
    with pytest.raises(SettingsError, match="MAX_MODEL_LEN"):
        fit(10_000_000_000, max_model_len=5000)
