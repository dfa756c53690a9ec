"""The policy of eviction, without an engine; among them the known failures of others who swap models."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from service.server.pool.policy import (
    MAX_RESIDENCY_S,
    Capacity,
    Enter,
    Evict,
    NeverFits,
    Newcomer,
    Resident,
    Wait,
    choose,
    decide,
)

NOW_S = 1000.0


def room(max_models=10, num_bytes=100):
    return Capacity(max_models=max_models, num_bytes=num_bytes, yield_after_s=10.0)


def model(name, num_bytes=10, **facts):
    return Resident(name=name, num_bytes=num_bytes, **facts)


def ask(residents, capacity, num_bytes=10, waiting_s=0.0, now_s=NOW_S):
    newcomer = Newcomer(num_bytes=num_bytes, waiting_since_s=now_s - waiting_s)
    return decide(newcomer, residents, capacity, now_s)


def test_where_there_is_room_nothing_goes():
    assert ask([], room(max_models=1)) == Enter()
    assert ask([model("a", 90)], room()) == Enter()


def test_the_least_recently_used_model_goes():
    residents = [model("new", last_used_s=2), model("old", last_used_s=1)]
    assert ask(residents, room(max_models=2)) == Evict(("old",))


def test_the_coldest_model_that_alone_frees_enough_goes():
    residents = [model("cold", 10, last_used_s=1), model("cool", 60, last_used_s=2), model("warm", 30, last_used_s=3)]
    assert ask(residents, room(), num_bytes=40) == Evict(("cool",))


def test_where_none_alone_frees_enough_the_fewest_go():
    residents = [model("a", 20, last_used_s=1), model("b", 20, last_used_s=2), model("c", 60, last_used_s=3)]
    assert ask(residents, room(), num_bytes=80) == Evict(("a", "c"))


def test_models_of_one_age_go_in_a_fixed_order():
    """Source: https://github.com/ollama/ollama/pull/10185 (unloads in the order of a hash table)."""
    residents = [model(name) for name in "bca"]
    assert ask(residents, room(max_models=3)) == Evict(("a",))


def test_llama_cpp_21678_a_model_with_open_requests_is_not_evicted():
    """Source: https://github.com/ggml-org/llama.cpp/issues/21678; also llama-swap #19 and #588."""
    assert ask([model("busy", num_open=1)], room(max_models=1)) == Wait(NOW_S + 10)
    residents = [model("busy", num_open=1, last_used_s=1), model("idle", last_used_s=2)]
    assert ask(residents, room(max_models=2)) == Evict(("idle",))


def test_llama_cpp_22284_models_that_are_asked_for_in_turn_do_not_evict_each_other_at_once():
    """Source: https://github.com/ggml-org/llama.cpp/pull/22284 (A goes for B, B for A, before either answers)."""
    just_loaded = model("a", ready_s=NOW_S, load_s=3)
    assert ask([just_loaded], room(max_models=1)) == Wait(NOW_S + 3)
    assert ask([just_loaded], room(max_models=1), now_s=NOW_S + 3) == Evict(("a",))
    slow = model("a", ready_s=NOW_S, load_s=600)
    assert ask([slow], room(max_models=1)) == Wait(NOW_S + MAX_RESIDENCY_S)


def test_ollama_14407_a_model_that_is_never_idle_yields_to_one_that_has_waited_long():
    """Source: https://github.com/ollama/ollama/pull/14407 (waits for a count that new requests keep above zero)."""
    busy = model("a", num_open=3)
    assert ask([busy], room(max_models=1), waiting_s=9) == Wait(NOW_S + 1)
    assert ask([busy], room(max_models=1), waiting_s=10) == Evict(("a",))


def test_ollama_17408_a_model_that_leaves_is_waited_for_and_not_chosen_again():
    """Source: https://github.com/ollama/ollama/issues/17408 (a model chosen for eviction gets another request)."""
    leaving = model("a", num_open=1, is_leaving=True)
    assert ask([leaving], room(max_models=1), waiting_s=60) == Wait()
    assert ask([leaving, model("b")], room(max_models=1), waiting_s=60) == Evict(("b",))


def test_ollama_18282_a_model_that_never_fits_is_refused_with_the_numbers_and_evicts_none():
    """Source: https://github.com/ollama/ollama/issues/18282 (evicts all, again and again)."""
    assert ask([model("a")], room(), num_bytes=101) == NeverFits(100, 0)
    kept = model("kept", 40, keeps_loaded=True)
    assert ask([kept, model("a", 30)], room(), num_bytes=61) == NeverFits(60, 1)


def test_ollama_10948_two_models_that_fit_together_stay_together():
    """Source: https://github.com/ollama/ollama/issues/10948 (models of one base replace each other)."""
    assert ask([model("a", 50)], room(max_models=2), num_bytes=50) == Enter()


def test_llama_cpp_18153_a_model_that_stays_loaded_is_never_chosen():
    """Source: https://github.com/ggml-org/llama.cpp/issues/18153."""
    residents = [model("kept", keeps_loaded=True), model("a", last_used_s=5)]
    assert ask(residents, room(max_models=2)) == Evict(("a",))
    assert ask(residents[:1], room(max_models=1)) == NeverFits(90, 1)


def test_llama_swap_612_a_loaded_model_answers_its_requests_while_another_waits_its_time():
    """Source: https://github.com/mostlygeek/llama-swap/issues/612 (A B A A C becomes A A A B C)."""
    residents = [model("a", num_open=1)]
    assert isinstance(ask(residents, room(max_models=1), waiting_s=0), Wait)
    assert ask([model("a", num_open=0)], room(max_models=1), waiting_s=1) == Evict(("a",))


residents_of_any_kind = st.lists(
    st.builds(
        model,
        st.uuids().map(str),
        st.integers(1, 50),
        num_open=st.integers(0, 2),
        last_used_s=st.floats(0, 999),
        ready_s=st.floats(0, 1000),
        load_s=st.floats(0, 100),
        keeps_loaded=st.booleans(),
        is_leaving=st.booleans(),
    ),
    max_size=6,
)


@given(residents_of_any_kind, st.integers(1, 120), st.integers(1, 6), st.floats(0, 30))
def test_what_is_decided_makes_room_or_can_be_waited_for(residents, num_bytes, max_models, waiting_s):
    capacity = room(max_models)
    decision = ask(residents, capacity, num_bytes, waiting_s)
    by_name = {resident.name: resident for resident in residents}
    match decision:
        case Enter():
            assert sum(r.num_bytes for r in residents) + num_bytes <= 100
            assert len(residents) < max_models
        case Evict(names):
            gone = [by_name[name] for name in names]
            assert not any(r.keeps_loaded or r.is_leaving for r in gone)
            assert waiting_s >= 10 or not any(r.num_open for r in gone)
            stay = [r for r in residents if r.name not in names and not r.is_leaving]
            assert sum(r.num_bytes for r in stay) + num_bytes <= 100
            assert len(stay) < max_models
        case Wait(until_s):
            # Nothing is waited for that cannot come: a time, or a model that goes or becomes idle.
            assert until_s is None or until_s > NOW_S
            assert until_s is not None or any(r.is_leaving or r.num_open for r in residents)
        case NeverFits():
            kept = [r for r in residents if r.keeps_loaded]
            assert sum(r.num_bytes for r in kept) + num_bytes > 100 or len(kept) >= max_models


@given(residents_of_any_kind, st.integers(-5, 120), st.integers(-3, 5))
def test_no_smaller_number_of_models_frees_enough(residents, excess_bytes, num_excess):
    chosen = choose(residents, excess_bytes, num_excess)
    fewest = None
    for size in range(max(num_excess, 1), len(residents) + 1):
        if any(sum(r.num_bytes for r in some) >= excess_bytes for some in itertools.combinations(residents, size)):
            fewest = size
            break
    assert (None if chosen is None else len(chosen)) == fewest
    if chosen is not None:
        assert sum(r.num_bytes for r in chosen) >= excess_bytes
        assert len({r.name for r in chosen}) == len(chosen)
