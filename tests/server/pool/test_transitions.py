"""The states of a model in a pool: the table is complete, and nothing happens outside of it."""

import itertools

import pytest

from service.catalogue.entry import ModelEntry
from service.server.pool.pooled_model import TRANSITIONS, Event, PooledModel, State


def model_in(state):
    return PooledModel(ModelEntry(name="a", uri="/models/a"), state=state)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_an_event_has_the_transition_of_the_table_or_is_a_mistake(state, event):
    model = model_in(state)
    if event in TRANSITIONS[state]:
        model.on(event)
        assert model.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(AssertionError, match=f"a: {event} while {state}"):
            model.on(event)
        assert model.state is state


def reachable_from(state):
    """Return all states that a sequence of events leads to."""
    found, left = {state}, [state]
    while left:
        following = set(TRANSITIONS[left.pop()].values()) - found
        found |= following
        left += following
    return found


@pytest.mark.parametrize("state", State)
def test_every_state_is_reached_from_every_other_so_that_no_model_is_stuck(state):
    assert reachable_from(state) == set(State)


@pytest.mark.parametrize("state", State)
def test_a_model_is_either_away_on_its_way_or_in_memory(state):
    model = model_in(state)
    assert [model.is_loading, model.is_in_memory, model.reported_state in ("available", "unloading")].count(True) == 1
    assert model.is_in_memory == (model.is_open or model.is_leaving)
    assert model.reported_state in ("available", "loading", "ready", "unloading")


def test_requests_use_a_model_only_between_its_load_and_what_makes_it_leave():
    [open_state] = [state for state in State if model_in(state).is_open]
    came_from = {before for before, events in TRANSITIONS.items() if open_state in events.values()}
    assert came_from == {State.LOADING, State.LEAVING}
    assert set(TRANSITIONS[open_state]) == {Event.LEAVE}
