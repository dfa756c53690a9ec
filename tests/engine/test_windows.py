"""Random models with sliding windows through the engine: pages apart change nothing but memory."""

import functools
import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.compile.aot import compile_programs
from service.device.mesh import DeviceMesh
from service.device.native.library import native_code
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes, WindowShapes
from service.engine.steps.programs import engine_programs
from service.kernels.blocks import BlockAttention
from service.kernels.native_pages import NativePagedAttention
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.observability.model_metrics import ModelMetrics
from service.weights.assembly import assemble_weights
from tests.engine.running import run, tokens_of
from tests.parity.family_cases import FAMILY_CASES, WINDOW
from tests.tolerances import SAME_TOKENS_OTHER_STEPS_ATOL

ROUNDED_ATOL = 1e-3  # of 8 bits: a number that lies between two is rounded to either
SAMPLING = Sampling(temperature=0.0, num_logprobs=0)
NATIVE = NativePagedAttention() if native_code().has_products else PagedReference()
WHOLE = EngineShapes(
    num_slots=3,
    num_pages=48,
    page_size=4,
    max_model_len=64,
    max_prefill_tokens=16,
    row_tokens=4,
    has_sampling_variants=False,
    skips_padding=True,
)
APART = replace(WHOLE, windows=(WindowShapes(WINDOW, 80, 6, 8),))


@functools.cache
def model_of(name, kernel, kv_dtype):
    config = next(case for case in FAMILY_CASES if case.name == name).hub_config
    return Decoder(read_config("test", json.loads(json.dumps(config))), kernel=kernel, kv_dtype=kv_dtype)


def runner_of(name, kernel, shapes, folder, kv_dtype=None):
    model, mesh = model_of(name, kernel, kv_dtype), DeviceMesh((jax.devices()[0],))
    tensors = next(case for case in FAMILY_CASES if case.name == name).tensors()
    save_file(tensors, folder / "model.safetensors")
    weights = assemble_weights(model.weight_specs(), load_file(folder / "model.safetensors"), mesh=mesh)
    programs = engine_programs(model, shapes, weight_shapes(model.weight_specs(), mesh))
    compiled = compile_programs(programs, num_threads=2)
    runner = Runner(shapes, model.layer_groups, weights, {name: one.executable for name, one in compiled.items()})
    runner.warm()
    return runner


def prompts():
    """Return texts of many lengths, two of which begin alike."""
    random = np.random.RandomState(5)
    texts = [random.randint(0, 96, length).tolist() for length in (1, 7, 9, 26, 40)]
    return [*texts, [*texts[-1][:32], *texts[0], *texts[1]]]


def requests(texts=None, max_tokens=20):
    texts = prompts() if texts is None else texts
    return [Request(f"{number}", tuple(text), max_tokens, SAMPLING) for number, text in enumerate(texts)]


def probabilities(events):
    return tokens_of(events), [entry.logprob for event in events for entry in event.logprobs]


def check_same(found, expected, atol=SAME_TOKENS_OTHER_STEPS_ATOL):
    for events, own in zip(found, expected, strict=True):
        token_ids, logprobs = probabilities(events)
        assert token_ids == probabilities(own)[0]
        np.testing.assert_allclose(logprobs, probabilities(own)[1], atol=atol, rtol=0)


CASES = [
    ("gemma3", NATIVE, None),
    ("gemma4_shared", NATIVE, None),  # with layers that have no cache of their own
    pytest.param("gemma4_shared", NATIVE, np.dtype(np.int8), marks=pytest.mark.grid),
    pytest.param("gemma4", PagedReference(), None, marks=pytest.mark.grid),
    pytest.param("gpt_oss", NATIVE, None, marks=pytest.mark.grid),
    pytest.param("gemma2", BlockAttention(), None, marks=pytest.mark.grid),
    pytest.param("mixtral", NATIVE, None, marks=pytest.mark.grid),  # without a layer that sees all
    pytest.param("gemma3", NATIVE, np.dtype(np.int8), marks=pytest.mark.grid),
]


@pytest.mark.parametrize(("name", "kernel", "kv_dtype"), CASES)
def test_tokens_are_those_of_whole_pages_alone_among_others_after_a_preemption_and_from_cached_pages(
    name, kernel, kv_dtype, tmp_path, start_engine
):
    atol = SAME_TOKENS_OTHER_STEPS_ATOL if kv_dtype is None else ROUNDED_ATOL
    whole = runner_of(name, kernel, WHOLE, tmp_path, kv_dtype)
    expected = [run(start_engine(whole, shapes=WHOLE), one)[0] for one in requests()]
    assert len({tuple(tokens_of(events)) for events in expected}) > 3
    apart = runner_of(name, kernel, APART, tmp_path, kv_dtype)
    check_same([run(start_engine(apart, shapes=APART), one)[0] for one in requests()], expected, atol)
    engine = start_engine(apart, shapes=APART)
    for is_again in (False, True):
        found = run(engine, *requests())
        check_same(found, expected, atol)
        if is_again:
            assert [events[0].num_cached_tokens for events in found][3:5] == [24, 36]
    metrics = ModelMetrics()
    fewer = replace(APART, num_pages=20, windows=(replace(APART.windows[0], num_pages=8),))
    check_same(run(start_engine(apart, metrics, shapes=fewer), *requests()), expected, atol)
    assert metrics.value("levserve_num_preemptions_total") > 0


@pytest.mark.grid
@pytest.mark.parametrize("name", ["gemma3", "gemma4_shared"])
def test_a_decode_step_of_one_program_reads_the_same_pages(name, tmp_path, start_engine):
    whole = replace(APART, has_whole_steps=True, skips_padding=False)
    expected = run(start_engine(runner_of(name, NATIVE, WHOLE, tmp_path), shapes=WHOLE), *requests())
    check_same(run(start_engine(runner_of(name, NATIVE, whole, tmp_path), shapes=whole), *requests()), expected)
