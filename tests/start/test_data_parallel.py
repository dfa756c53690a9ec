"""How many engines a model gets on hosts of several accelerators."""

import logging

import jax
import pytest

from service.checkpoint.discover import locate
from service.errors import DoesNotFit, SettingsError
from service.settings import Settings
from service.start.kinds.engine_spec import choose_engine_spec
from service.storage.local import LocalSource
from tests.served import DEMO
from tests.start.test_spec import plan

HINT = "DATA_PARALLEL=auto"


def ids(spec) -> list[list[int]]:
    return [[device.id for device in mesh.devices] for mesh in spec.meshes]


def test_each_engine_has_an_equal_part_of_the_devices_and_one_bundle_serves_all():
    four = plan(4, data_parallel=4)
    assert ids(four) == [[0], [1], [2], [3]]
    assert four.shapes == plan(1).shapes
    assert four.key.digest == plan(1).key.digest
    assert ids(plan(4, data_parallel=2)) == [[0, 1], [2, 3]]
    assert ids(plan(4, data_parallel=2, tensor_parallel=1)) == [[0], [2]]
    assert ids(plan(4, data_parallel=3)) == [[0], [1], [2]]


def test_auto_takes_as_many_engines_as_hold_enough(caplog):
    with caplog.at_level(logging.INFO):
        assert ids(plan(4, data_parallel="auto")) == [[0], [1], [2], [3]]
    assert HINT not in caplog.text
    # One device has no room for the weights and a text.
    assert ids(plan(4, data_parallel="auto", limit_bytes=36_000_000, max_num_seqs=64)) == [[0, 1], [2, 3]]
    assert ids(plan(4, data_parallel="auto", tensor_parallel=2)) == [[0, 1], [2, 3]]
    assert ids(plan(1, data_parallel="auto")) == [[0]]


def test_a_start_with_one_engine_says_that_several_would_fit(caplog):
    with caplog.at_level(logging.INFO):
        assert ids(plan(2)) == [[0, 1]]
    assert HINT in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        plan(2, tensor_parallel=2)
        plan(1)
    assert HINT not in caplog.text


def test_a_cpu_runs_one_engine_unless_told():
    located = locate(str(DEMO), LocalSource)
    assert len(choose_engine_spec(Settings(data_parallel="auto"), located, jax.devices()).meshes) == 1
    both = choose_engine_spec(Settings(data_parallel=2, max_num_seqs=4), located, jax.devices())
    assert ids(both) == [[0], [1]]


@pytest.mark.parametrize("settings", [{"data_parallel": 5}, {"data_parallel": 2, "tensor_parallel": 4}])
def test_more_engines_than_devices_are_refused_with_what_would_do(settings):
    stated = r"DATA_PARALLEL: is .* this host has 4 devices \(gpu\)\. Set it to at most [14]\."
    with pytest.raises(SettingsError, match=stated):
        plan(4, **settings)


def test_engines_that_do_not_fit_are_not_made_fewer():
    with pytest.raises(DoesNotFit):
        plan(4, data_parallel=4, limit_bytes=8_000_000)
