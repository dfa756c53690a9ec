"""A random Idefics3 through the engine: rows of pictures in place of tokens, alone and among others."""

import asyncio
import threading

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from service.compile.aot import compile_programs
from service.device.mesh import DeviceMesh
from service.engine.batch import positions_of
from service.engine.engine import Engine
from service.engine.request import Medium, PlacedMedium, Request, Sampling
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes, RowShapes, StateShapes, StepKind
from service.engine.steps.programs import engine_programs
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.layer_groups import encoder_groups
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.observability.model_metrics import ModelMetrics
from service.weights.assembly import assemble_weights
from service.weights.names import resolve
from tests.engine.running import collect, tokens_of
from tests.engine.test_engine import FailingRunner
from tests.parity.vision_cases import (
    CONFIG,
    GRIDS,
    IMAGE_SIZE,
    IMAGE_TOKEN,
    MISTRAL_CONFIG,
    MISTRAL_GRIDS,
    MISTRAL_REFERENCE_PATH,
    NUM_ROWS,
    QWEN35_CONFIG,
    QWEN35_REFERENCE_PATH,
    QWEN_CONFIG,
    QWEN_REFERENCE_PATH,
    REFERENCE_PATH,
    cut_patches,
    mistral_pictures,
    mistral_tensors,
    mistral_token_ids,
    patches,
    pictures,
    qwen35_tensors,
    qwen_tensors,
    qwen_token_ids,
    tensors,
    token_ids,
)
from tests.tolerances import SAME_MODEL_ATOL

MAX_TOKENS = 8
REFERENCE = PagedReference()


def runner_of(config, tensors, folder, shapes_of, *, kernel=REFERENCE, **sizes):
    save_file(tensors, folder / "model.safetensors")
    model, mesh = Decoder(read_config("test", config), kernel=kernel), DeviceMesh((jax.devices()[0],))
    stored, specs = load_file(folder / "model.safetensors"), model.weight_specs()
    found = resolve("test", specs, {"model.safetensors": stored}).tensors
    weights = assemble_weights(specs, {name: stored[own.name] for name, own in found.items()}, mesh=mesh)
    groups = encoder_groups(model.config.image_encoder, model.weight_specs())
    sizes = {"num_slots": 3, "num_pages": 36, "max_model_len": 48, "max_prefill_tokens": 8} | sizes
    shapes = EngineShapes(page_size=4, row_tokens=4, has_sampling_variants=False, media=shapes_of(len(groups)), **sizes)
    programs = engine_programs(model, shapes, weight_shapes(model.weight_specs(), mesh))
    compiled = compile_programs(programs, num_threads=2)
    executables = {name: program.executable for name, program in compiled.items()}
    made = Runner(shapes, model.layer_groups, weights, executables, encoder_groups=groups)
    made.warm()
    return made


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    def shapes_of(num_parts):
        return RowShapes(5, NUM_ROWS, (NUM_ROWS,), num_parts, (IMAGE_SIZE, IMAGE_SIZE, 3))

    return runner_of(CONFIG, tensors(), tmp_path_factory.mktemp("idefics3"), shapes_of)


@pytest.fixture(scope="module")
def qwen_runner(tmp_path_factory):
    """Return one whose pictures are padded to 2 or 7 rows, and lie in places of 3."""

    def shapes_of(num_parts):
        size = QWEN_CONFIG["vision_config"]["patch_size"]
        return RowShapes(8, 3, (2, 7), num_parts, (4, 3 * size**2), num_added=3, has_grid=True)

    return runner_of(QWEN_CONFIG, qwen_tensors(), tmp_path_factory.mktemp("qwen3_vl"), shapes_of)


@pytest.fixture(scope="module")
def mistral_runner(tmp_path_factory):
    """Return one whose pictures are padded to 2 or 7 rows, and lie in places of 3."""

    def shapes_of(num_parts):
        size = MISTRAL_CONFIG["vision_config"]["patch_size"]
        return RowShapes(8, 3, (2, 7), num_parts, (4, 3 * size**2))

    return runner_of(MISTRAL_CONFIG, mistral_tensors(), tmp_path_factory.mktemp("mistral3"), shapes_of)


@pytest.fixture(scope="module")
def qwen35_runner(tmp_path_factory):
    """Return one whose layers keep states, with the sizes of `qwen_runner`."""

    def shapes_of(num_parts):
        size = QWEN35_CONFIG["vision_config"]["patch_size"]
        return RowShapes(8, 3, (2, 7), num_parts, (4, 3 * size**2), has_grid=True)

    folder = tmp_path_factory.mktemp("qwen3_5")
    return runner_of(QWEN35_CONFIG, qwen35_tensors(), folder, shapes_of, states=StateShapes(12, 8))


def placed(token_ids, shown):
    """Return some pictures in the places that a text has for them."""
    starts = np.flatnonzero(np.asarray(token_ids) == IMAGE_TOKEN)[::NUM_ROWS].tolist()
    return tuple(
        PlacedMedium(Medium(picture.tobytes()[:64], picture, NUM_ROWS), start)
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


def check_probabilities(found, path, ids, name="logits"):
    """Check the log-probability of each token of a prompt against the logits of transformers."""
    with np.load(path) as reference:
        logits = reference[name].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for entry, row, token_id in zip(found[1:], expected, ids[1:], strict=False):
        assert entry.logprob == pytest.approx(row[token_id], abs=SAME_MODEL_ATOL)


def test_probabilities_equal_transformers_though_pictures_are_cut_by_chunks(runner, start_engine):
    engine = start_engine(runner, shapes=runner.shapes)
    found = events_of(engine, request("a", num_prompt_logprobs=0))[0].prompt_logprobs
    check_probabilities(found, REFERENCE_PATH, token_ids())


def of_any_shape(numbers):
    """Return some of Qwen's pictures in the places of its text."""
    ids, placed_media, start = qwen_token_ids().tolist(), [], 0
    for number in numbers:
        (rows, columns), own = GRIDS[number], patches(number)
        count = rows * columns // 4
        padded = np.pad(own, ((0, 4 * (2 if count <= 2 else 7) - len(own)), (0, 0)))
        start = ids.index(IMAGE_TOKEN, start)
        features = (padded, np.array([rows, columns], np.int32))
        placed_media.append(PlacedMedium(Medium(own.tobytes()[:64], features, count), start, (rows // 2, columns // 2)))
        start += count
    return tuple(placed_media)


def qwen_request(name, **options):
    sampling = Sampling(temperature=0.0)
    return Request(
        name, tuple(qwen_token_ids().tolist()), MAX_TOKENS, sampling, media=of_any_shape(range(3)), **options
    )


@pytest.mark.grid
def test_pictures_of_any_shape_and_what_they_add_to_layers_equal_transformers(qwen_runner, start_engine):
    metrics = ModelMetrics()
    engine = start_engine(qwen_runner, metrics, shapes=qwen_runner.shapes)
    found = events_of(engine, qwen_request("a", num_prompt_logprobs=0))[0].prompt_logprobs
    check_probabilities(found, QWEN_REFERENCE_PATH, qwen_token_ids())
    assert parts(metrics) == 3 * qwen_runner.shapes.media.num_parts


def test_pictures_in_a_text_whose_layers_keep_states_equal_transformers_and_are_found_again(
    qwen35_runner, start_engine
):
    engine = start_engine(qwen35_runner, shapes=qwen35_runner.shapes)
    found = events_of(engine, qwen_request("a", num_prompt_logprobs=0))
    check_probabilities(found[0].prompt_logprobs, QWEN35_REFERENCE_PATH, qwen_token_ids())
    [alone] = start_engine(qwen35_runner, shapes=qwen35_runner.shapes).generate([qwen_request("b")])
    assert tuple(tokens_of(found)) == alone.token_ids
    text = Request("t", (3, 4, 5), 20, Sampling(temperature=0.0))
    assert engine.generate([text, qwen_request("c"), qwen_request("d")])[1:] == [alone, alone]
    cached = events_of(engine, qwen_request("e"))
    assert cached[0].num_cached_tokens > 0
    assert tuple(tokens_of(cached)) == alone.token_ids


def mistral_request(name, **options):
    """Return a request that shows Mistral's pictures, between whose lines are tokens."""
    ids, shown, start = mistral_token_ids().tolist(), [], 0
    for picture, (rows, columns) in zip(mistral_pictures(), MISTRAL_GRIDS, strict=True):
        count, line = rows * columns // 4, columns // 2
        medium = Medium(picture.tobytes()[:64], cut_patches(picture, 4, 2, 2 if count <= 2 else 7), count)
        shown.append(PlacedMedium(medium, ids.index(IMAGE_TOKEN, start), line=line))
        start = shown[-1].end
    return Request(name, tuple(ids), MAX_TOKENS, Sampling(temperature=0.0), media=tuple(shown), **options)


def test_pictures_with_tokens_between_their_lines_equal_transformers_and_are_found_again(mistral_runner, start_engine):
    metrics = ModelMetrics()
    engine = start_engine(mistral_runner, metrics, shapes=mistral_runner.shapes)
    found = events_of(engine, mistral_request("a", num_prompt_logprobs=0))
    check_probabilities(found[0].prompt_logprobs, MISTRAL_REFERENCE_PATH, mistral_token_ids())
    again = events_of(engine, mistral_request("b"))
    assert again[0].num_cached_tokens == 32
    assert tokens_of(again) == tokens_of(found)
    assert parts(metrics) == 4 * mistral_runner.shapes.media.num_parts


def test_positions_of_time_row_and_column_equal_transformers_however_they_are_cut():
    media, length = of_any_shape(range(3)), len(qwen_token_ids())
    with np.load(QWEN_REFERENCE_PATH) as reference:
        expected = reference["positions"]
    for start in range(length):
        for end in (start + 1, min(start + 5, length), length):
            np.testing.assert_array_equal(positions_of(media, start, end), expected[:, start:end])
    after = expected[0, -1] + 1 + np.arange(4)
    np.testing.assert_array_equal(positions_of(media, length, length + 4), np.tile(after, (3, 1)))


@pytest.mark.grid
def test_answers_about_pictures_of_any_shape_are_the_same_among_others_and_from_cached_pages(qwen_runner, start_engine):
    [alone] = start_engine(qwen_runner, shapes=qwen_runner.shapes).generate([qwen_request("a")])
    engine = start_engine(qwen_runner, shapes=qwen_runner.shapes)
    text = Request("t", (3, 4, 5), 20, Sampling(temperature=0.0))
    [of_text] = engine.generate([text])
    assert engine.generate([text, qwen_request("b"), qwen_request("c")]) == [of_text, alone, alone]
    cached = events_of(engine, qwen_request("d"))
    assert cached[0].num_cached_tokens == 28
    assert tuple(tokens_of(cached)) == alone.token_ids


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
    queries, hits = (metrics.value(f"levserve_mm_cache_{name}_total") for name in ("queries", "hits"))
    assert queries - hits == 6
    assert hits >= 2


def test_a_picture_that_is_shown_changes_the_answer(runner, start_engine):
    engine = start_engine(runner, shapes=runner.shapes)
    shown = pictures()
    answers = [events_of(engine, request(str(i), np.roll(shown, i, axis=0), num_prompt_logprobs=0)) for i in range(3)]
    assert len({events[0].prompt_logprobs[-1].logprob for events in answers}) == 3


class HeldRunner(FailingRunner):
    """A device that comes to a stand at one of its steps until the test lets it go on."""

    def __init__(self, runner, num_parts, is_part):
        """Hold the last of so many parts of encodings, or the first step of others after them."""
        super().__init__(runner, 10_000)
        self.may_begin, self.has_come, self.may_go_on = threading.Event(), threading.Event(), threading.Event()
        self._parts_left, self._is_part = num_parts, is_part

    def dispatch(self, plan, read_previous):
        self.may_begin.wait()
        is_part = plan.kind is StepKind.ENCODE
        self._parts_left -= is_part
        if self._parts_left == 0 and is_part is self._is_part and not self.has_come.is_set():
            self.has_come.set()
            self.may_go_on.wait()
        return super().dispatch(plan, read_previous)


async def until_nothing_is_held(metrics):
    while any(metrics.value(f"levserve_{kind}_cache_usage_perc") for kind in ("mm", "kv")):
        await asyncio.sleep(0.001)


LEAVER, OTHERS = "leaves", ("text", "shares", "waits")


@pytest.fixture(scope="module")
def met(runner):
    """Return requests by name, of which one will leave, and the tokens that each has alone."""
    shown, other = [np.roll(pictures(), 3 * number, axis=1) for number in (1, 2)]
    requests = [
        request(LEAVER, shown),
        request("text", [], [3, 4, 5], 30),
        request("shares", shown[:1], [7, 7, *[IMAGE_TOKEN] * NUM_ROWS, 6]),
        request("waits", other),  # for the slot of who leaves, and for the places
    ]
    engine = Engine(runner, runner.shapes, ModelMetrics(), max_requests=1)
    engine.start()
    tokens = {one.id: engine.generate([one])[0].token_ids for one in requests}
    engine.stop()
    return {one.id: one for one in requests}, tokens


@pytest.mark.parametrize(
    ("picture", "is_last", "is_part"),
    [(0, False, True), (0, True, False), (1, False, False), (1, True, True)],
    ids=["first part", "after the last part", "after a part of the second picture", "last part of the second picture"],
)
def test_who_leaves_while_pictures_are_encoded_gives_back_rows_and_pages_and_others_go_on(
    runner, start_engine, met, picture, is_last, is_part
):
    requests, tokens = met
    num_parts = runner.shapes.media.num_parts
    num_begun = picture * num_parts + (num_parts if is_last else 1)
    metrics, held = ModelMetrics(), HeldRunner(runner, num_begun, is_part)
    engine = start_engine(held, metrics, shapes=runner.shapes)

    async def main():
        leaving = engine.submit(requests[LEAVER])
        reading = [asyncio.create_task(collect(engine, requests[name])) for name in OTHERS]
        await asyncio.sleep(0)  # so that all are submitted
        held.may_begin.set()
        await asyncio.to_thread(held.has_come.wait)
        assert metrics.value("levserve_mm_cache_usage_perc") > 0
        leaving.abort()
        held.may_go_on.set()
        assert [event async for event in leaving] == []
        found = [tuple(tokens_of(events)) for events in await asyncio.gather(*reading)]
        assert found == [tokens[name] for name in OTHERS]
        # Of the pictures of who left, the shared one was encoded to its end, and of the others no part after it left.
        assert parts(metrics) == max(num_begun, num_parts) + 3 * num_parts
        assert tuple(tokens_of(await collect(engine, requests[LEAVER]))) == tokens[LEAVER]
        await until_nothing_is_held(metrics)

    try:
        asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        held.may_begin.set()
        held.may_go_on.set()
