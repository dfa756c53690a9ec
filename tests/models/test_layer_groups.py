"""Stages: how layers are cut, and that a cut changes nothing that a model says."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from service.compile.aot import compile_timed
from service.compile.lazy import BuildPlan, LazyExecutables
from service.device.mesh import DeviceMesh
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.scheduler import Scheduler
from service.engine.shapes import EngineShapes
from service.engine.steps.programs import engine_programs
from service.kernels.blocks import BlockAttention
from service.kernels.paging import Paging
from service.models.decoder import Decoder
from service.models.layer_groups import layer_groups
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from tests.models.whole_step import WholeStep
from tests.parity.cases import CASES
from tests.parity.family_cases import FAMILY_CASES

HUB_CONFIG = next(case.hub_config for case in CASES if case.name == "mistral_window")
CONFIG = read_config("test", HUB_CONFIG)
SHAPES = EngineShapes(
    num_slots=1,
    num_pages=8,
    page_size=4,
    max_model_len=16,
    max_prefill_tokens=8,
    has_sampling_variants=False,
)


@pytest.mark.parametrize(
    ("pattern", "size"), [("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", 2), ("MMM*" * 8, 4), ("M*-E" * 2, 4)]
)
def test_recurrent_layers_in_no_order_are_cut_into_groups_of_few_kinds(pattern, size):
    case = next(case for case in FAMILY_CASES if case.name == "nemotron_h")
    values = {**case.hub_config, "layers_block_type": None, "hybrid_override_pattern": pattern}
    groups = layer_groups(read_config("test", values).layers, ())
    assert len(groups[0].layers) == size
    assert len({group.kind for group in groups}) <= 4


def deep(num_layers, windows=None):
    first, every = CONFIG.layers[0], windows or [8] * num_layers
    attentions = [dataclasses.replace(first.attention, window=window) for window in every]
    return dataclasses.replace(CONFIG, layers=tuple(dataclasses.replace(first, attention=a) for a in attentions))


def groups_of(config):
    return layer_groups(config.layers, Decoder(config).weight_specs())


@pytest.mark.parametrize(
    ("num_layers", "sizes", "num_kinds"),
    [
        (1, [1], 1),
        (2, [2], 1),
        (22, [5, 5, 5, 5, 2], 2),
        (30, [5] * 6, 1),
        (32, [4] * 8, 1),
        (80, [5] * 16, 1),
    ],
)
def test_layers_that_look_alike_are_cut_into_a_few_at_a_time(num_layers, sizes, num_kinds):
    groups = groups_of(deep(num_layers))
    assert [len(group.layers) for group in groups] == sizes
    assert [layer for group in groups for layer in group.layers] == list(range(num_layers))
    assert len({group.kind for group in groups}) == num_kinds


@pytest.mark.parametrize(
    ("windows", "num_kinds"),
    [
        ([None, 8] * 12, 1),  # every other layer: a group is two or three pairs
        ([8, 8, 8, 8, 8, None] * 4, 1),  # one of six
        ([None] * 10 + [8] * 14, 3),  # no cut of a few layers hits the border
    ],
)
def test_layers_with_other_windows_are_cut_where_the_fewest_kinds_come_out(windows, num_kinds):
    config = deep(24, windows)
    groups = groups_of(config)
    assert len({group.kind for group in groups}) == num_kinds
    for group in groups:
        first = next(s for s in groups if s.kind == group.kind)
        assert [config.layers[i] for i in group.layers] == [config.layers[i] for i in first.layers]


def test_stages_of_a_kind_take_alike_weights_in_the_same_order_and_all_are_taken():
    specs = {spec.name: spec for spec in Decoder(deep(12)).weight_specs()}
    groups = groups_of(deep(12))
    assert sorted(name for group in groups for name in group.weights) == sorted(n for n in specs if "." in n)
    for group in groups:
        for name, of_first in zip(group.weights, groups[0].weights, strict=True):
            assert name.split(".")[2] == of_first.split(".")[2]
            assert specs[name].shape == specs[of_first].shape


@pytest.mark.slow
def test_a_model_whose_stages_share_executables_says_what_it_says_layer_by_layer():
    config = deep(8, [None, 3] * 4)
    model = Decoder(config, kernel=BlockAttention())
    kinds = [group.kind for group in model.layer_groups]
    assert len(set(kinds)) < len(kinds)  # else nothing is shared
    random = np.random.RandomState(2)
    weights = {s.name: jnp.asarray(random.randn(*s.shape) * 0.4, jnp.float32) for s in model.weight_specs()}
    mesh = DeviceMesh((next(iter(weights["embed"].devices())),))
    programs = {
        program.name: program for program in engine_programs(model, SHAPES, weight_shapes(model.weight_specs(), mesh))
    }
    # Each is compiled when it is first called.
    plan = BuildPlan(lambda name: compile_timed(programs[name]).executable, num_first_threads=0, num_rest_threads=0)
    runner = Runner(SHAPES, model.layer_groups, weights, LazyExecutables(list(programs), 0, plan))
    scheduler = Scheduler(num_slots=1, num_pages=8, page_size=4, chunking=Chunking.of(SHAPES))
    prompt = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3)  # two chunks
    sequence = scheduler.add(Request("a", prompt, 6, Sampling(temperature=0.0)))
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(plan, runner.dispatch(plan).read().tolist())
    assert list(sequence.known_ids[len(prompt) :]) == _greedy_layer_by_layer(model, weights, prompt, 6)


def _greedy_layer_by_layer(model, weights, prompt, num_tokens):
    step, token_ids = WholeStep(model), np.zeros((1, SHAPES.max_model_len), np.int32)
    token_ids[0, : len(prompt)] = prompt
    for num_known in range(len(prompt), len(prompt) + num_tokens):
        paging = Paging(*(jnp.array(v, jnp.int32) for v in ([0], [num_known], [[0, 1, 2, 3]])))
        logits, _ = step(weights, step.empty_caches(SHAPES.layout), jnp.asarray(token_ids), paging)
        token_ids[0, num_known : num_known + 1] = logits[0, num_known - 1].argmax()
    return token_ids[0, len(prompt) :].tolist()
