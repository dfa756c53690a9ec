"""The states of a model in a pool: the table is complete, and nothing happens outside of it."""

import asyncio
import itertools

import pytest

from service.catalogue.entry import ModelEntry
from service.server.pool.pooled_model import TRANSITIONS, Event, Residence, State


def residence_in(state):
    loop = asyncio.new_event_loop()
    residence = Residence(ModelEntry(name="a", uri="/models/a"), 1, 0.0, loop.create_future(), state)
    loop.close()
    return residence


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_an_event_has_the_transition_of_the_table_or_is_a_mistake(state, event):
    residence = residence_in(state)
    if event in TRANSITIONS[state]:
        residence.on(event)
        assert residence.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(AssertionError, match=f"a: {event} while {state}"):
            residence.on(event)
        assert residence.state is state


def reachable_from(state):
    """Return all states that a sequence of events leads to."""
    found, left = {state}, [state]
    while left:
        following = set(TRANSITIONS[left.pop()].values()) - found
        found |= following
        left += following
    return found


def test_every_state_is_reached_and_each_load_ends():
    assert reachable_from(State.LOADING) == set(State)
    assert all(State.GONE in reachable_from(state) for state in State)
    assert TRANSITIONS[State.GONE] == {}


@pytest.mark.parametrize("state", State)
def test_a_load_is_on_its_way_in_memory_or_on_its_way_out(state):
    residence = residence_in(state)
    is_out = state in (State.UNLOADING, State.GONE)
    assert [residence.is_loading, residence.is_in_memory, is_out].count(True) == 1
    assert residence.resident.is_leaving == (state is not State.READY)


def test_requests_use_a_model_only_between_its_load_and_what_makes_it_leave():
    came_from = {before for before, events in TRANSITIONS.items() if State.READY in events.values()}
    assert came_from == {State.LOADING, State.LEAVING}
    assert set(TRANSITIONS[State.READY]) == {Event.LEAVE}
