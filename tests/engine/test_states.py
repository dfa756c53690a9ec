"""Random models with recurrent layers through the engine: what they say depends on their own text alone."""

import functools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.compile.aot import compile_programs
from service.device.mesh import DeviceMesh
from service.device.native.library import native_code
from service.engine.request import Request, Sampling
from service.engine.runner import DeviceState, Runner
from service.engine.schedule.speculation import Speculation
from service.engine.shapes import EngineShapes, StateShapes
from service.engine.steps.programs import engine_programs
from service.kernels.products.linear import PLAIN, SPLIT, Products
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.observability.model_metrics import ModelMetrics
from service.weights.assembly import assemble_weights
from tests.engine.drafting import Oracle
from tests.engine.running import run, tokens_of
from tests.parity.family_cases import FAMILY_CASES
from tests.tolerances import SAME_MODEL_ATOL, SAME_QUANTIZED_MODEL_ATOL

SHAPES = EngineShapes(
    num_slots=3,
    num_pages=96,
    page_size=4,
    max_model_len=64,
    max_prefill_tokens=16,
    row_tokens=8,
    has_sampling_variants=False,
    skips_padding=True,
    states=StateShapes(40, 16),
)
NATIVE = Products(SPLIT.num_splits, native_code()) if native_code().has_products else PLAIN
SAMPLINGS = (
    Sampling(temperature=0.0, num_logprobs=0),
    Sampling(temperature=0.9, top_p=0.95, seed=11, num_logprobs=0),
    Sampling(temperature=0.7, top_k=20, seed=12, frequency_penalty=0.6, repetition_penalty=1.1, num_logprobs=0),
)


def case_of(name):
    return next(case for case in FAMILY_CASES if case.name == name)


@functools.cache
def model_of(name, kv_dtype=None, products=NATIVE):
    config = json.loads(json.dumps(case_of(name).hub_config))
    return Decoder(read_config("test", config), kernel=PagedReference(), kv_dtype=kv_dtype, products=products)


def runner_of(name, folder, shapes=SHAPES, kv_dtype=None, *, has_nans=False):
    model, mesh = model_of(name, kv_dtype), DeviceMesh((jax.devices()[0],))
    save_file(case_of(name).tensors(), folder / "model.safetensors")
    weights = assemble_weights(model.weight_specs(), load_file(folder / "model.safetensors"), mesh=mesh)
    programs = engine_programs(model, shapes, weight_shapes(model.weight_specs(), mesh))
    compiled = compile_programs(programs, num_threads=2)
    executables = {name: one.executable for name, one in compiled.items()}
    state = DeviceState(shapes, model.layer_groups, executables)
    for cache in state.caches if has_nans else ():
        cache[:] = [jnp.full_like(a, jnp.nan) if shapes.states.num_states in a.shape[:2] else a for a in cache]
    runner = Runner(shapes, model.layer_groups, weights, executables, state)
    runner.warm()
    return runner


def prompts():
    """Return texts of many lengths, two of which begin alike."""
    random = np.random.RandomState(5)
    texts = [random.randint(0, 96, length).tolist() for length in (1, 7, 8, 9, 26, 40)]
    return [*texts, [*texts[-1][:32], *texts[0], *texts[1]]]


def requests(max_tokens=20):
    return [
        Request(f"{number}", tuple(text), max_tokens, SAMPLINGS[number % len(SAMPLINGS)])
        for number, text in enumerate(prompts())
    ]


def logprobs_of(events):
    return [entry.logprob for event in events for entry in event.logprobs]


def check_same(found, expected, atol=SAME_MODEL_ATOL):
    for events, own in zip(found, expected, strict=True):
        assert tokens_of(events) == tokens_of(own)
        np.testing.assert_allclose(logprobs_of(events), logprobs_of(own), atol=atol, rtol=0)


CASES = [
    ("lfm2", None),
    ("qwen3_5", None),
    ("granite_4_hybrid", None),
    pytest.param("granite_4_experts", None, marks=pytest.mark.grid),
    pytest.param("nemotron_h", None, marks=pytest.mark.grid),
    pytest.param("nemotron_h_latent", np.dtype(np.int8), marks=pytest.mark.grid),
    pytest.param("falcon_h1", None, marks=pytest.mark.grid),
    pytest.param("falcon_h1_no_norm", np.dtype(np.int8), marks=pytest.mark.grid),
    pytest.param("bamba", np.dtype(np.int8), marks=pytest.mark.grid),
    pytest.param("qwen3_next", None, marks=pytest.mark.grid),
    pytest.param("qwen3_5_moe", np.dtype(np.int8), marks=pytest.mark.grid),
    pytest.param("lfm2_bias", np.dtype(np.int8), marks=pytest.mark.grid),
    pytest.param("lfm3", None, marks=pytest.mark.grid),
    pytest.param("lfm2_moe", None, marks=pytest.mark.grid),
    pytest.param("olmo_hybrid", None, marks=pytest.mark.grid),
]
# One of each kind of recurrence and of cache always or in the grid; the others share their code.
DRAFTED_CASES = [
    ("qwen3_5", None),
    *(pytest.param(*case, marks=pytest.mark.grid) for case in CASES[:1] + CASES[2:3]),
    *(
        case
        if case.values[0] in ("nemotron_h_latent", "falcon_h1")
        else pytest.param(*case.values, marks=pytest.mark.slow)
        for case in CASES[3:]
    ),
]


@pytest.mark.parametrize(("name", "kv_dtype"), CASES)
def test_tokens_are_those_of_a_sequence_alone_among_others_after_a_preemption_and_from_a_kept_state(
    name, kv_dtype, tmp_path, start_engine
):
    runner = runner_of(name, tmp_path, kv_dtype=kv_dtype)
    atol = SAME_MODEL_ATOL if kv_dtype is None else SAME_QUANTIZED_MODEL_ATOL
    expected = [run(start_engine(runner, shapes=SHAPES), one)[0] for one in requests()]
    assert len({tuple(tokens_of(events)) for events in expected}) > 3
    engine = start_engine(runner, shapes=SHAPES)
    for is_again in (False, True):
        found = run(engine, *requests())
        check_same(found, expected, atol)
        if is_again:
            assert [events[0].num_cached_tokens for events in found][3:] == [8, 24, 32, 32]
    metrics = ModelMetrics()
    fewer = replace(SHAPES, num_pages=20, states=StateShapes(3, 64))
    check_same(run(start_engine(runner, metrics, shapes=fewer), *requests()), expected, atol)
    assert metrics.value("levserve_num_preemptions_total") > 0


@pytest.mark.parametrize(("name", "kv_dtype"), DRAFTED_CASES)
def test_drafts_that_are_wrong_leave_nothing_in_a_state(name, kv_dtype, tmp_path, start_engine):
    shapes = replace(SHAPES, num_drafts=4)
    runner = runner_of(name, tmp_path, shapes, kv_dtype)
    atol = SAME_MODEL_ATOL if kv_dtype is None else SAME_QUANTIZED_MODEL_ATOL
    expected = run(start_engine(runner, shapes=shapes), *requests())
    texts = {request.id: tokens_of(events) for request, events in zip(requests(), expected, strict=True)}

    def foreseen(sequence):
        return [*texts[sequence.request.id][len(sequence.output_ids) :], 9]

    for sizes in ({}, {"num_pages": 20, "states": StateShapes(4, 64)}):
        speculation = Speculation(shapes, [Oracle(foreseen, wrong=0.3)], is_adaptive=False)
        engine = start_engine(runner, shapes=replace(shapes, **sizes), speculation=speculation)
        check_same(run(engine, *requests()), expected, atol)
        assert speculation.num_draft_tokens > speculation.num_accepted_tokens > 20


@pytest.mark.parametrize("name", ["lfm2", pytest.param("qwen3_5", marks=pytest.mark.grid)])
def test_a_slot_that_holds_nan_is_as_good_as_any(name, tmp_path, start_engine):
    expected = run(start_engine(runner_of(name, tmp_path), shapes=SHAPES), *requests())
    runner = runner_of(name, tmp_path, has_nans=True)
    check_same(run(start_engine(runner, shapes=SHAPES), *requests()), expected)


@pytest.mark.grid
@pytest.mark.parametrize("name", ["lfm2", "qwen3_5"])
def test_a_decode_step_of_one_program_keeps_the_same_states(name, tmp_path, start_engine):
    whole = replace(SHAPES, has_whole_steps=True, skips_padding=False)
    expected = run(start_engine(runner_of(name, tmp_path), shapes=SHAPES), *requests())
    check_same(run(start_engine(runner_of(name, tmp_path, whole), shapes=whole), *requests()), expected)
