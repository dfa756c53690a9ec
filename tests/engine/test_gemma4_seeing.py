"""A random Gemma 4 through the engine: pictures of any shape, whose rows see each other, or none after them."""

import numpy as np
import pytest

from service.device.native.library import native_code
from service.engine.request import Medium, PlacedMedium, Request, Sampling
from service.engine.shapes import RowShapes
from service.kernels.native_pages import NativePagedAttention
from service.observability.model_metrics import ModelMetrics
from tests.engine.running import run, tokens_of
from tests.engine.test_seeing import REFERENCE, check_probabilities, events_of, parts, runner_of
from tests.parity.vision_cases import (
    GEMMA4_CONFIGS,
    GEMMA4_GRIDS,
    IMAGE_TOKEN,
    cut_patches,
    gemma4_pictures,
    gemma4_reference,
    gemma4_tensors,
    gemma4_token_ids,
)
from tests.tolerances import SAME_TOKENS_OTHER_STEPS_ATOL

pytestmark = pytest.mark.xdist_group("gemma4")
LARGE, SMALL = GEMMA4_CONFIGS
SAMPLING = Sampling(temperature=0.0, num_logprobs=0)
NATIVE = NativePagedAttention() if native_code().has_products else REFERENCE


def shapes_of(name):
    places = {"place_rows": 7, "is_whole": True} if name == LARGE else {"place_rows": 3}

    def of_parts(num_parts):
        return RowShapes(num_places=8, num_rows=(2, 7), num_parts=num_parts, features=(9, 48), **places)

    return of_parts


@pytest.fixture(scope="module", params=[LARGE, pytest.param(SMALL, marks=pytest.mark.grid)])
def gemma(request, tmp_path_factory):
    """Return one whose steps hold the longest picture, and whose pictures are padded to 2 or 7 rows."""
    name = request.param
    tensors = gemma4_tensors(name)
    sizes = {"max_model_len": 64, "num_pages": 60, "max_prefill_tokens": 12, "skips_padding": True}
    runner = runner_of(
        GEMMA4_CONFIGS[name], tensors, tmp_path_factory.mktemp(name), shapes_of(name), kernel=NATIVE, **sizes
    )
    return name, runner


def seeing(request_name, order=range(4), max_tokens=8, **options):
    """Return a request that shows pictures in this order in the places of the text."""
    ids, media = gemma4_token_ids().tolist(), []
    text = [[1, 5, 17], [8, 40, 41, 7], [], [60], [61, 3, 9, 12]]
    ids = list(text[0])
    for number, own in zip(order, text[1:], strict=True):
        picture, (rows, columns) = gemma4_pictures()[number], GEMMA4_GRIDS[number]
        count = rows * columns // 9
        features = cut_patches(picture, 4, 3, 2 if count <= 2 else 7)
        media.append(PlacedMedium(Medium(picture.tobytes(), features, count), len(ids) + 1))
        ids += [92, *[IMAGE_TOKEN] * count, 93, *own]
    return Request(request_name, tuple(ids), max_tokens, SAMPLING, media=tuple(media), **options)


def test_probabilities_equal_transformers_though_pictures_are_of_several_shapes(gemma, start_engine):
    name, runner = gemma
    assert seeing("a").prompt_ids == tuple(gemma4_token_ids().tolist())
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics, shapes=runner.shapes)
    found = events_of(engine, seeing("a", num_prompt_logprobs=0))[0].prompt_logprobs
    check_probabilities(found, gemma4_reference(name), gemma4_token_ids())
    assert parts(metrics) == 4 * runner.shapes.media.num_parts


def test_answers_are_the_same_alone_among_others_and_from_cached_pages(gemma, start_engine):
    _, runner = gemma

    def of(events):
        return tokens_of(events), [entry.logprob for event in events for entry in event.logprobs]

    sent = [Request("text", (3, 4, 5), 30, SAMPLING), seeing("b"), seeing("c", (3, 2, 1, 0)), seeing("d", (1, 1, 0, 3))]
    expected = [of(events_of(start_engine(runner, shapes=runner.shapes), one)) for one in sent]
    assert len({tuple(logprobs) for _, logprobs in expected}) == len(sent)
    engine = start_engine(runner, shapes=runner.shapes)
    for is_cached in (False, True):
        for own, events in zip(expected, run(engine, *sent), strict=True):
            tokens, logprobs = of(events)
            assert tokens == own[0]
            np.testing.assert_allclose(logprobs, own[1], atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)
            assert (events[0].num_cached_tokens >= 16) is (is_cached and len(tokens) == 8)
