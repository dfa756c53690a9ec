"""The sizes of an engine, from plain numbers."""

from dataclasses import replace

import pytest

from service.engine.shapes import RowShapes, step_pages, window_pages
from service.engine.sizing import ModelSize, engine_bytes, fit_engine, sequences_with_states
from service.errors import DoesNotFit, SettingsError

MODEL = ModelSize(context_len=4096, vocab_size=1000, weights_bytes=1_000_000_000, kv_bytes_per_token=10_000)


def fit(memory_bytes, model=MODEL, **changes):
    wanted = {"max_num_seqs": 16, "page_size": 16, "max_prefill_tokens": 256, "max_model_len": None} | changes
    return fit_engine(model, memory_bytes=memory_bytes, **wanted)


def test_with_room_for_all_every_slot_has_its_whole_context():
    shapes = fit(10_000_000_000)
    assert (shapes.max_model_len, shapes.num_pages, shapes.num_slots) == (4096, 16 * 4096 // 16, 16)


def test_with_less_room_there_are_fewer_pages_than_all_slots_could_fill():
    shapes = fit(1_400_000_000)
    assert shapes.max_model_len == 4096 > 16 * shapes.num_pages // 16
    assert shapes.num_pages * 160_000 < 400_000_000


def test_a_few_megabytes_more_or_less_give_the_same_shapes():
    assert len({fit(1_400_000_000 + change * 1_000_000).num_pages for change in range(-5, 6)}) == 1


def test_with_little_room_the_context_is_cut():
    assert fit(1_040_000_000).max_model_len < 4096


def test_what_cannot_fit_is_refused_with_both_numbers():
    with pytest.raises(DoesNotFit) as refusal:
        fit(1_010_000_000)
    assert refusal.value.available_bytes == 1_010_000_000 < refusal.value.needed_bytes
    with pytest.raises(DoesNotFit):
        fit(1_040_000_000, max_model_len=4096)


def test_more_context_than_the_model_has_is_a_wrong_setting():
    with pytest.raises(SettingsError, match="MAX_MODEL_LEN"):
        fit(10_000_000_000, max_model_len=5000)


def test_there_are_no_more_pages_than_the_kernel_can_address():
    limited = replace(MODEL, max_positions=20_000)
    wanted = {"max_num_seqs": 16, "page_size": 16, "max_prefill_tokens": 256, "max_model_len": None}
    assert fit_engine(limited, memory_bytes=10_000_000_000, **wanted).num_pages * 16 <= 20_000


def test_steps_that_hold_no_image_that_is_computed_whole_are_a_wrong_setting():
    seeing = replace(MODEL, media=RowShapes(32, 256, (256,), 5, (896, 896, 3), is_whole=True))
    wanted = {"memory_bytes": 10_000_000_000, "max_num_seqs": 16, "page_size": 16}
    with pytest.raises(SettingsError, match=r"MAX_PREFILL_TOKENS: is 256, .* set it to 320 or more\."):
        fit_engine(seeing, **wanted, max_prefill_tokens=256, max_model_len=None)
    shapes = fit_engine(seeing, **wanted, max_prefill_tokens=320, max_model_len=None)
    assert (shapes.fewest_rows, shapes.smallest_prompt_bucket.num_rows) == (5, 5)
    short = fit_engine(seeing, **wanted, max_prefill_tokens=256, max_model_len=256)
    assert short.fewest_rows == 4


TABLES = replace(MODEL, context_len=131_072, max_table_bytes=512 * 1024)


def fit_tables(max_num_seqs, page_size=None, max_prefill_tokens=256):
    return fit_engine(
        TABLES,
        memory_bytes=100_000_000_000,
        max_num_seqs=max_num_seqs,
        page_size=page_size,
        max_prefill_tokens=max_prefill_tokens,
        max_model_len=None,
    )


@pytest.mark.parametrize(
    ("max_num_seqs", "max_prefill_tokens", "page_size"),
    [(16, 256, 16), (17, 256, 32), (64, 256, 64), (256, 256, 256), (16, 2048, 32), (1, 2048, 32), (4, 8192, 128)],
)
def test_pages_grow_until_the_kernel_takes_their_tables(max_num_seqs, max_prefill_tokens, page_size):
    shapes = fit_tables(max_num_seqs, max_prefill_tokens=max_prefill_tokens)
    assert shapes.page_size == page_size
    for num_tables in (max_num_seqs, *shapes.row_counts):
        assert 4 * num_tables * shapes.max_model_len // page_size <= TABLES.max_table_bytes


def test_tables_that_no_page_size_makes_small_enough_are_refused_with_both_numbers():
    with pytest.raises(SettingsError, match=r"MAX_NUM_SEQS: is 257: .* 526,336 bytes, .* 524,288\. .* lower\.$"):
        fit_tables(257)
    with pytest.raises(SettingsError, match="or PAGE_SIZE higher"):
        fit_tables(64, page_size=16)
    with pytest.raises(SettingsError, match=r"MAX_PREFILL_TOKENS: is 8192: the page tables of 128 rows of prompts"):
        fit_tables(1, page_size=16, max_prefill_tokens=8192)
    assert (
        fit_engine(
            replace(TABLES, max_table_bytes=None),
            memory_bytes=100_000_000_000,
            max_num_seqs=257,
            page_size=None,
            max_prefill_tokens=256,
            max_model_len=None,
        ).page_size
        == 16
    )


WINDOW, BY_WINDOW = 1024, 8_000
WINDOWED = replace(MODEL, context_len=131_072, kv_bytes_per_token=2_000, window_bytes_per_token=((WINDOW, BY_WINDOW),))
WANTED = {"max_num_seqs": 16, "page_size": 16, "max_prefill_tokens": 512, "max_model_len": None}


def sequences_that_fit(shapes, length=8192):
    """Return how many sequences of a length fit at the same time."""
    pages = [shapes.num_pages / shapes.pages_for(length)]
    of_windows = [(w.num_pages - step_pages(512, 16)) / window_pages(w.window, 16) for w in shapes.windows]
    return int(min(pages + of_windows))


@pytest.mark.parametrize("memory_bytes", [1_700_000_000, 2_400_000_000, 6_000_000_000])
def test_the_pages_of_a_window_leave_room_for_more_sequences_and_stay_within_the_memory(memory_bytes):
    apart = fit_engine(WINDOWED, memory_bytes=memory_bytes, **WANTED)
    whole = replace(WINDOWED, kv_bytes_per_token=10_000, window_bytes_per_token=())
    before = fit_engine(whole, memory_bytes=memory_bytes, **WANTED)
    assert engine_bytes(WINDOWED, apart) <= memory_bytes
    assert sequences_that_fit(apart) >= 2.5 * sequences_that_fit(before)
    assert apart.max_model_len >= before.max_model_len
    assert apart.kv_tokens == {"full": 16 * apart.num_pages, "window_1024": 16 * apart.windows[0].num_pages}


def test_a_model_whose_layers_all_have_a_window_has_room_for_its_context_in_every_slot():
    model = replace(WINDOWED, kv_bytes_per_token=0)
    shapes = fit_engine(model, memory_bytes=2_000_000_000, **WANTED)
    assert (shapes.max_model_len, shapes.num_pages) == (131_072, 16 * 131_072 // 16)
    assert engine_bytes(model, shapes) <= 2_000_000_000


def test_a_window_that_saves_nothing_has_no_pages_apart():
    model = replace(WINDOWED, context_len=1536)
    shapes = fit_engine(model, memory_bytes=2_000_000_000, **WANTED)
    assert shapes.windows == ()
    assert engine_bytes(model, shapes) <= 2_000_000_000


STATES = replace(MODEL, state_bytes=50_000_000)


def test_states_take_a_part_of_the_memory_beside_pages():
    shapes = fit(8_000_000_000, STATES)
    assert shapes.states is not None
    assert shapes.states.interval % shapes.row_tokens == 0
    snapshots = shapes.states.num_states - 2 * shapes.num_slots
    assert snapshots == shapes.num_pages * shapes.page_size // shapes.states.interval
    assert engine_bytes(STATES, shapes) <= 8_000_000_000


def test_of_states_that_do_not_fit_for_all_sequences_there_are_as_many_as_fit():
    shapes = fit(1_900_000_000, STATES)
    assert shapes.states is not None
    assert 2 <= shapes.states.num_states < 2 * shapes.num_slots
    assert 1 <= sequences_with_states(shapes) < shapes.num_slots == sequences_with_states(fit(8_000_000_000, STATES))
    assert engine_bytes(STATES, shapes) <= 1_900_000_000
    with pytest.raises(DoesNotFit):
        fit(1_900_000_000, replace(MODEL, state_bytes=600_000_000))
