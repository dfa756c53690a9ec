"""A random Gemma 3 through the engine: pictures whose rows see each other, each computed whole in one step."""

from dataclasses import replace

import numpy as np
import pytest

from service.device.native.library import native_code
from service.engine.request import Medium, PlacedMedium, Request, Sampling
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes, RowShapes, sufficient_buckets
from service.engine.steps.keys import Embed, encoder_keys, first_keys, program_keys
from service.kernels.native_pages import NativePagedAttention
from service.models.decoder_weights import decoder_weight_specs
from service.models.layer_groups import encoder_groups, layer_groups
from service.models.registry import read_config
from service.observability.model_metrics import ModelMetrics
from tests.engine.running import run, tokens_of
from tests.engine.test_seeing import REFERENCE, check_probabilities, events_of, parts, runner_of
from tests.parity.vision_cases import (
    GEMMA_CONFIG,
    GEMMA_IMAGE_SIZE,
    GEMMA_REFERENCE_PATH,
    GEMMA_ROWS,
    IMAGE_TOKEN,
    gemma_pictures,
    gemma_tensors,
    gemma_token_ids,
)
from tests.tolerances import SAME_TOKENS_OTHER_STEPS_ATOL

pytestmark = pytest.mark.xdist_group("gemma3")
MAX_TOKENS = 8
SAMPLING = Sampling(temperature=0.0, num_logprobs=0)
FEWEST_TOKENS = 12  # of steps in which every picture fits: it touches three rows at most
NATIVE = NativePagedAttention() if native_code().has_products else REFERENCE


def shapes_of(num_parts):
    size = (GEMMA_IMAGE_SIZE, GEMMA_IMAGE_SIZE, 3)
    return RowShapes(5, GEMMA_ROWS, (GEMMA_ROWS,), num_parts, size, is_whole=True)


@pytest.fixture(
    scope="module",
    params=[(FEWEST_TOKENS, NATIVE), pytest.param((64, REFERENCE), marks=pytest.mark.grid)],
    ids=["narrow", "wide"],
)
def runner(request, tmp_path_factory) -> Runner:
    """Return one whose steps hold one picture, with attention in C++, or one whose steps hold a whole prompt."""
    tokens, kernel = request.param
    folder = tmp_path_factory.mktemp("gemma3")
    sizes = {"max_model_len": 80, "num_pages": 60, "max_prefill_tokens": tokens, "skips_padding": True}
    return runner_of(GEMMA_CONFIG, gemma_tensors(), folder, shapes_of, kernel=kernel, **sizes)


def seeing(name: str, shown=None, *, ids=None, max_tokens=MAX_TOKENS, **options) -> Request:
    """Return a request that shows pictures, by default all, in the places that its text has for them."""
    shown = gemma_pictures() if shown is None else shown
    ids = gemma_token_ids(len(shown)).tolist() if ids is None else ids
    starts = np.flatnonzero(np.asarray(ids) == IMAGE_TOKEN)[::GEMMA_ROWS].tolist()
    media = tuple(
        PlacedMedium(Medium(picture.tobytes(), picture, GEMMA_ROWS), start)
        for start, picture in zip(starts, shown, strict=True)
    )
    return Request(name, tuple(ids), max_tokens, SAMPLING, media=media, **options)


def probabilities(events):
    """Return the tokens of an answer with their log-probabilities."""
    return tokens_of(events), [entry.logprob for event in events for entry in event.logprobs]


def alone(runner, start_engine, sent):
    return probabilities(events_of(start_engine(runner, shapes=runner.shapes), sent))


def check_same(found, expected):
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)


@pytest.mark.parametrize("count", range(5))
def test_probabilities_equal_transformers_however_many_pictures_a_step_holds(runner, start_engine, count):
    engine = start_engine(runner, shapes=runner.shapes)
    found = events_of(engine, seeing("a", gemma_pictures()[:count], num_prompt_logprobs=0))[0].prompt_logprobs
    check_probabilities(found, GEMMA_REFERENCE_PATH, gemma_token_ids(count), f"logits{count}")


def test_tokens_are_the_same_alone_among_others_after_a_preemption_and_from_cached_pages(runner, start_engine):
    shown = [np.roll(gemma_pictures(2), 5 * number, axis=1) for number in range(4)]
    text = Request("text", (3, 4, 5), 40, SAMPLING)
    sent = [text, *(seeing(f"seeing-{number}", own) for number, own in enumerate(shown))]
    expected = [alone(runner, start_engine, one) for one in sent]
    assert len({tuple(logprobs) for _, logprobs in expected}) == len(sent)
    engine = start_engine(runner, shapes=runner.shapes)
    for is_cached in (False, True):
        for own, events in zip(expected, run(engine, *sent), strict=True):
            check_same(probabilities(events), own)
            assert (events[0].num_cached_tokens >= 16) is (is_cached and len(own[0]) == MAX_TOKENS)


def test_a_sequence_that_lost_its_pages_sees_its_pictures_again(runner, start_engine):
    sent = [seeing(f"seeing-{number}", gemma_pictures()[[number]], max_tokens=40) for number in range(3)]
    expected = [alone(runner, start_engine, one) for one in sent]
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics, shapes=replace(runner.shapes, num_pages=20))
    for own, events in zip(expected, run(engine, *sent), strict=True):
        check_same(probabilities(events), own)
    assert metrics.value("levserve_num_preemptions_total") > 0


def test_a_picture_is_encoded_once_and_every_end_of_a_cached_prefix_is_gone_on_from(runner, start_engine):
    ids = gemma_token_ids(2).tolist()
    first, second = np.flatnonzero(np.array(ids) == IMAGE_TOKEN)[::GEMMA_ROWS].tolist()
    others = {
        end: seeing(f"until {end}", gemma_pictures(2)[: 1 + (end > second)], ids=[*ids[:end], 50])
        for end in (first + GEMMA_ROWS, first + GEMMA_ROWS + 1, second + GEMMA_ROWS)
    }
    expected = {end: alone(runner, start_engine, other) for end, other in others.items()}
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics, shapes=runner.shapes)
    engine.generate([seeing("first", gemma_pictures(2))])
    num_parts = parts(metrics)
    assert num_parts == 2 * runner.shapes.media.num_parts
    again = events_of(engine, seeing("again", gemma_pictures(2)))[0]
    assert again.num_cached_tokens == (len(ids) - 1) // 4 * 4
    # What they share ends within the first picture, and within the second.
    for end, other in others.items():
        cached = events_of(engine, other)
        assert cached[0].num_cached_tokens == end // 4 * 4
        check_same(probabilities(cached), expected[end])
    assert parts(metrics) == num_parts


def test_pictures_that_differ_by_a_pixel_share_no_page_from_their_beginning_on(runner, start_engine):
    engine = start_engine(runner, shapes=runner.shapes)
    ids = [1, 5, 17, 30, 8, 9, *gemma_token_ids(1).tolist()]
    shown, other = gemma_pictures(1), gemma_pictures(1)
    other[0, -1, -1, -1] ^= 1
    one = events_of(engine, seeing("one", shown, ids=ids, num_prompt_logprobs=0))[0]
    changed = events_of(engine, seeing("other", other, ids=ids))[0]
    assert changed.num_cached_tokens == ids.index(IMAGE_TOKEN) // 4 * 4
    fresh = start_engine(runner, shapes=runner.shapes)
    own = events_of(fresh, seeing("other", other, ids=ids, num_prompt_logprobs=0))[0]
    first = ids.index(IMAGE_TOKEN)
    differs = [a.logprob != b.logprob for a, b in zip(one.prompt_logprobs[1:], own.prompt_logprobs[1:], strict=True)]
    assert not any(differs[: first - 1])
    assert differs[first]  # the token after the first row, which sees the last


@pytest.mark.parametrize("max_prefill_tokens", [512, 8192])
def test_images_need_few_programs_beside_those_of_text(max_prefill_tokens):
    tower = {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896}
    vision = {**tower, "patch_size": 14, "intermediate_size": 4304}
    text = {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}  # Gemma 3 4B
    config = read_config("m", {"model_type": "gemma3", "text_config": text, "vision_config": vision})
    specs = decoder_weight_specs(config)
    groups, encoding = layer_groups(config.layers, specs), encoder_groups(config.image_encoder, specs)
    size = (896, 896, 3)
    shapes = EngineShapes(
        num_slots=16,
        num_pages=4096,
        page_size=16,
        max_model_len=65536,
        max_prefill_tokens=max_prefill_tokens,
        media=RowShapes(32, 256, (256,), len(encoding), size, is_whole=True),
    )
    assert shapes.fewest_rows == 5
    # Before the rest is compiled, too, a step holds every image.
    [prompts] = {key.bucket for key in first_keys(shapes, groups) if isinstance(key, Embed)}
    assert prompts == sufficient_buckets(shapes)[0]
    assert prompts.num_rows >= 5
    assert set(program_keys(shapes, groups)) == set(program_keys(replace(shapes, media=None), groups))
    assert len(encoder_keys(encoding, groups, shapes)) <= 16
