"""A random Idefics3 through the engine: rows of pictures in place of tokens, alone and among others."""

import asyncio

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.compile.aot import compile_programs
from service.device.mesh import DeviceMesh
from service.engine.request import Medium, PlacedMedium, Request, Sampling
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes, RowShapes
from service.engine.steps.programs import engine_programs
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.observability.model_metrics import ModelMetrics
from service.weights.assembly import assemble_weights
from tests.parity.vision_cases import CONFIG, IMAGE_TOKEN, NUM_ROWS, REFERENCE_PATH, pictures, tensors, token_ids
from tests.tolerances import SAME_MODEL_ATOL

MAX_TOKENS = 8


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("idefics3")
    save_file(tensors(), folder / "model.safetensors")
    model, mesh = Decoder(read_config("test", CONFIG), kernel=PagedReference()), DeviceMesh((jax.devices()[0],))
    weights = assemble_weights(model.weight_specs(), load_file(folder / "model.safetensors"), mesh=mesh)
    groups = model.encoder.layer_groups
    shapes = EngineShapes(
        num_slots=3,
        num_pages=24,
        page_size=4,
        max_model_len=40,
        max_prefill_tokens=8,
        row_tokens=4,
        has_sampling_variants=False,
        media=RowShapes(5, NUM_ROWS, len(groups), model.encoder.features.shape),
    )
    programs = engine_programs(model, shapes, weight_shapes(model.weight_specs(), mesh))
    compiled = compile_programs(programs, num_threads=2)
    executables = {name: program.executable for name, program in compiled.items()}
    made = Runner(shapes, model.layer_groups, weights, executables, encoder_groups=groups)
    made.warm()
    return made


def placed(token_ids, shown):
    """Return some pictures in the places that a text has for them."""
    starts = np.flatnonzero(np.asarray(token_ids) == IMAGE_TOKEN)[::NUM_ROWS].tolist()
    return tuple(
        PlacedMedium(Medium(picture.tobytes()[:64], picture), start, NUM_ROWS)
        for start, picture in zip(starts, shown, strict=True)
    )


def request(name, shown=None, ids=None, max_tokens=MAX_TOKENS, **options):
    ids = token_ids().tolist() if ids is None else ids
    media = placed(ids, pictures() if shown is None else shown)
    sampling = options.pop("sampling", Sampling(temperature=0.0))
    return Request(name, tuple(ids), max_tokens, sampling, media=media, **options)


def events_of(engine, sent):
    async def read():
        return [event async for event in engine.submit(sent)]

    return asyncio.run(read())


def parts(metrics):
    return metrics.registry.get_sample_value("levserve_engine_steps_total", {"kind": "encode"}) or 0


def test_probabilities_equal_transformers_though_pictures_are_cut_by_chunks(runner, start_engine):
    engine = start_engine(runner, shapes=runner.shapes)
    found = events_of(engine, request("a", num_prompt_logprobs=0))[0].prompt_logprobs
    with np.load(REFERENCE_PATH) as reference:
        logits = reference["logits"].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for entry, row, token_id in zip(found[1:], expected, token_ids()[1:], strict=False):
        assert entry.logprob == pytest.approx(row[token_id], abs=SAME_MODEL_ATOL)


def test_pictures_of_several_requests_have_the_tokens_that_they_have_alone(runner, start_engine):
    shown = [np.roll(pictures(), 5 * number, axis=1) for number in range(6)]
    alone = []
    for number, own in enumerate(shown):
        engine = start_engine(runner, shapes=runner.shapes)
        alone += engine.generate([request(f"alone-{number}", own)])
    assert len({generation.token_ids for generation in alone}) > 1
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics, shapes=runner.shapes)
    texts = [request(f"text-{number}", [], [3, 4, 5 + number], 20) for number in range(3)]
    of_texts = engine.generate(texts)
    together = engine.generate([*texts, *(request(f"{name}-{i}", own) for name in "ab" for i, own in enumerate(shown))])
    assert together == [*of_texts, *alone, *alone]


def test_a_picture_is_encoded_once_wherever_it_is_shown(runner, start_engine):
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics, shapes=runner.shapes)
    num_parts = runner.shapes.media.num_parts
    engine.generate([request("first")])
    assert parts(metrics) == 3 * num_parts
    [again] = [events[0] for events in [events_of(engine, request("again"))]]
    assert again.num_cached_tokens == 20
    seen = [IMAGE_TOKEN] * NUM_ROWS
    other_text = [7, 7, *seen, 6, *seen, 9]
    engine.generate([request("other", pictures()[[2, 0]], other_text)])
    assert parts(metrics) == 3 * num_parts
    engine.generate([request("salted", cache_salt=b"other")])
    assert parts(metrics) == 6 * num_parts


def test_a_picture_that_is_shown_changes_the_answer(runner, start_engine):
    engine = start_engine(runner, shapes=runner.shapes)
    shown = pictures()
    answers = [events_of(engine, request(str(i), np.roll(shown, i, axis=0), num_prompt_logprobs=0)) for i in range(3)]
    assert len({events[0].prompt_logprobs[-1].logprob for events in answers}) == 3
