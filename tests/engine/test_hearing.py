"""A random Whisper through the engine: memories in pages, scores and probes, alone and among others."""

import asyncio

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.compile.aot import compile_programs
from service.device.mesh import DeviceMesh
from service.engine.request import FinishReason, Medium, Probe, Request, Sampling
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes, MemoryShapes
from service.engine.steps.programs import engine_programs
from service.kernels.reference import PagedReference
from service.models.config import HubConfig
from service.models.decoder import Decoder
from service.models.families.whisper import read_config
from service.models.weight_shapes import weight_shapes
from service.models.weight_spec import bare_name
from service.observability.model_metrics import ModelMetrics
from service.weights.assembly import assemble_weights
from tests.parity.whisper_cases import CONFIG, NUM_POSITIONS, features, tensors

MAX_TOKENS = 12
PROMPT = (2, 9, 4)
NUM_MELS = CONFIG["num_mel_bins"]


def media(count):
    return [Medium(bytes([i]), np.roll(features(), 7 * i, axis=0) * (1 + i)) for i in range(count)]


@pytest.fixture(scope="module")
def model():
    return Decoder(read_config(HubConfig("test", CONFIG)), kernel=PagedReference())


@pytest.fixture(scope="module")
def runner(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    save_file(tensors(), folder / "model.safetensors")
    found = {bare_name(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    mesh = DeviceMesh((jax.devices()[0],))
    weights = assemble_weights(model.weight_specs(), found, mesh=mesh)
    shapes = EngineShapes(
        num_slots=3,
        num_pages=36,
        page_size=4,
        max_model_len=40,
        max_prefill_tokens=8,
        row_tokens=4,
        has_sampling_variants=False,
        memory=MemoryShapes(NUM_POSITIONS, len(model.encoder.layer_groups), (2 * NUM_POSITIONS, NUM_MELS)),
    )
    programs = engine_programs(model, shapes, weight_shapes(model.weight_specs(), mesh))
    compiled = compile_programs(programs, num_threads=2)
    executables = {name: program.executable for name, program in compiled.items()}
    made = Runner(shapes, model.layer_groups, weights, executables, encoder_groups=model.encoder.layer_groups)
    made.warm()
    return made


def request(name, medium, **options):
    sampling = options.pop("sampling", Sampling(temperature=1.0, seed=3))
    return Request(name, PROMPT, MAX_TOKENS, sampling, memory=medium, **options)


def encodings(metrics):
    return metrics.registry.get_sample_value("levserve_engine_steps_total", {"kind": "encode"}) or 0


def test_each_window_has_the_tokens_that_it_has_alone(runner, start_engine):
    windows = media(4)
    alone = []
    for number, medium in enumerate(windows):
        engine = start_engine(runner, shapes=runner.shapes)
        alone += engine.generate([request(f"alone-{number}", medium)])
    assert len({generation.token_ids for generation in alone}) > 1
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics, shapes=runner.shapes)
    together = engine.generate([request(f"{name}-{i}", windows[i]) for name in "ab" for i in range(4)])
    assert together == [*alone, *alone]
    assert metrics.value("levserve_num_preemptions_total") >= 0


def test_a_window_is_encoded_once_however_often_it_is_decoded(runner, start_engine):
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics, shapes=runner.shapes)
    [medium] = media(1)
    for name in ("detection", "decoding", "fallback", "translation"):
        engine.generate([request(name, medium)])
    assert encodings(metrics) == runner.shapes.memory.num_parts


def events_of(engine, sent):
    async def read():
        return [event async for event in engine.submit(sent)]

    return asyncio.run(read())


def tokens_of(events):
    return [token_id for event in events for token_id in event.token_ids]


def test_scores_are_those_of_the_tokens_that_may_be_sampled(runner, start_engine):
    engine = start_engine(runner, shapes=runner.shapes)
    [medium] = media(1)
    allowed = np.zeros(96, np.uint8)
    allowed[[5, 6]] = 1
    mask = np.packbits(allowed, bitorder="little").tobytes()
    plain = events_of(engine, request("plain", medium, sampling=Sampling(temperature=0.0, num_logprobs=20)))
    options = {"temperature": 0.0, "num_logprobs": 0, "allowed_mask": mask}
    scored = events_of(engine, request("scored", medium, sampling=Sampling(**options, scores=True)))
    own = events_of(engine, request("own", medium, sampling=Sampling(**options)))
    assert tokens_of(own) == tokens_of(scored)
    # Of two tokens, the likelier one has at least half of the probability that is left.
    assert -np.log(2) <= scored[0].logprobs[0].logprob <= 0
    assert own[0].logprobs[0].logprob < scored[0].logprobs[0].logprob
    assert plain[0].logprobs[0].rank == 1


def test_a_probe_has_the_probability_of_its_token_after_its_position(runner, start_engine):
    engine = start_engine(runner, shapes=runner.shapes)
    [medium] = media(1)
    for position in range(len(PROMPT)):
        expected = events_of(
            engine,
            Request("shorter", PROMPT[: position + 1], 1, Sampling(temperature=0.0, num_logprobs=20), memory=medium),
        )[0]
        likeliest, logprob = expected.logprobs[0].top[3]
        probed = events_of(engine, request(f"probe-{position}", medium, probe=Probe(position, likeliest)))
        assert probed[0].probe.logprob == pytest.approx(logprob, abs=1e-5)
        assert probed[-1].finish_reason is FinishReason.LENGTH


def attention_of(engine, name, medium):
    heads = ((1, 1), (0, 0), (1, 0))
    return events_of(engine, request(name, medium, heads=heads))[0].attention


def test_heads_attend_to_all_of_the_window_the_same_alone_and_among_others(runner, start_engine):
    engine = start_engine(runner, shapes=runner.shapes)
    windows = media(3)
    alone = [attention_of(engine, f"alone-{i}", medium) for i, medium in enumerate(windows)]
    assert {scores.shape for scores in alone} == {(3, len(PROMPT), NUM_POSITIONS)}
    assert not np.allclose(alone[0][0], alone[0][2])

    async def together():
        heads = ((1, 1), (0, 0), (1, 0))
        streams = [engine.submit(request(f"together-{i}", medium, heads=heads)) for i, medium in enumerate(windows)]
        events = [[event async for event in stream] for stream in streams]
        return [first.attention for first, *_ in events]

    for scores, expected in zip(asyncio.run(together()), alone, strict=True):
        assert scores == pytest.approx(expected, abs=1e-4)


def test_without_its_own_window_a_transcript_is_another(runner, start_engine):
    engine = start_engine(runner, shapes=runner.shapes)
    found = engine.generate([request(str(i), medium) for i, medium in enumerate(media(3))])
    assert len({generation.token_ids for generation in found}) == 3
