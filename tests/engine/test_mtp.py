"""The layer that predicts further tokens of a Qwen 3.5: it drafts what the published computation would, and answers
stay as they are.
"""

import asyncio
from dataclasses import replace

import jax
import numpy as np
import pytest

from service.engine.drafter import Drafter
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.schedule.speculation import Speculation
from service.engine.shapes import EngineShapes, StateShapes
from service.engine.steps.draft import draft_programs
from service.engine.steps.draft_head import HeadDrafting, lag_of_head
from service.engine.steps.programs import engine_programs
from service.models.decoder import Decoder
from service.models.decoder_weights import decoder_weight_specs
from service.models.mtp import mtp_of, mtp_weight_specs, shared_specs
from service.models.mtp_head import MtpHead
from service.models.quantization import Quantization
from service.models.registry import read_config
from service.observability.model_metrics import ModelMetrics
from tests.engine.drafting import executables_of
from tests.engine.mtp_reference import Sizes, drafts, make_tensors, target_states
from tests.engine.running import run, tokens_of
from tests.engine.test_eagle3 import GREEDY, NEAR, on_device, prompt, shapes_of

pytestmark = pytest.mark.grid  # of heads; the tests of EAGLE-3 always run
FLOAT32 = np.dtype(np.float32)
SHAPES = EngineShapes(
    num_slots=2,
    num_pages=40,
    page_size=4,
    max_model_len=64,
    max_prefill_tokens=16,
    row_tokens=16,
    num_drafts=4,
    skips_padding=True,
    has_sampling_variants=False,
    states=StateShapes(8, 32),
)


class Served:
    """A model and its layer, compiled, and engines on them."""

    def __init__(self, sizes, shapes=SHAPES):
        self.sizes = sizes
        self.target, self.further = make_tensors(sizes)
        config = read_config("target", sizes.hub_config)
        mtp = mtp_of(config)
        self.shapes = replace(shapes, taps=mtp.taps)
        model, specs = Decoder(config), decoder_weight_specs(config)
        own, shared = mtp_weight_specs(mtp, FLOAT32, Quantization.NONE, None), shared_specs(specs)
        self.weights = on_device(specs, self.target, None)
        self.own = on_device(own, self.further, None)
        self.own |= {name: self.weights[spec.name] for name, spec in shared}
        outside = (*own, *(replace(spec, name=name) for name, spec in shared))
        axes = {spec.name: spec.axes for spec in outside if not spec.name.startswith("layers.")}
        drafting = HeadDrafting(MtpHead(Decoder(mtp.decoder), mtp, axes), self.shapes)
        features = jax.ShapeDtypeStruct((1, SHAPES.num_pages, SHAPES.page_size, sizes.hidden), FLOAT32)
        programs = draft_programs(drafting, self.shapes, shapes_of(self.own), features)
        programs += engine_programs(model, self.shapes, shapes_of(self.weights), drafting)
        self.executables = executables_of(programs)
        self._groups = model.layer_groups
        self.drafted = []  # the known tokens of each draft, and the draft

    def start(self, start_engine, *, with_drafts=True, **sizes):
        """Start an engine, whose drafts are noted; it may have fewer pages and states than its device."""
        runner = Runner(self.shapes, self._groups, self.weights, self.executables)
        shapes, self.metrics = replace(self.shapes, **sizes), ModelMetrics()
        if not with_drafts:
            return start_engine(runner, self.metrics, shapes=shapes), None
        drafted = self.drafted = []

        class Noting(Drafter):
            def draft(self, lengths):
                found = super().draft(lengths)
                drafted.extend((list(s.known_ids), tokens) for s, tokens in found.items())
                return found

        drafter = Noting(
            *(self.shapes, self.own, self.executables, runner.state.draft_cache),
            features=runner.state.features,
            context_len=SHAPES.max_model_len,
            vocab_size=self.sizes.vocab,
            lag=lag_of_head(self.shapes),
        )
        speculation = Speculation(self.shapes, (), model=drafter, is_adaptive=False)
        return start_engine(runner, self.metrics, shapes=shapes, speculation=speculation), speculation

    def check_drafts(self):
        """Compare all drafts with those of the reference."""
        assert self.drafted
        for known, tokens in self.drafted:
            expected, margins = drafts(self.target, self.further, self.sizes, known, len(tokens))
            for place, margin in enumerate(margins):
                assert tokens[place] == expected[place] or margin < NEAR, (known, tokens, expected)
                if tokens[place] != expected[place]:
                    break


@pytest.fixture(scope="module", params=[0, 6], ids=["dense", "experts"])
def served(unchecked_types, request):
    return Served(Sizes(experts=request.param))


def test_it_drafts_what_the_reference_does_and_the_answers_are_those_without(served, start_engine):
    asked = [
        Request("long", prompt(30, 1), 20, GREEDY),
        Request("short", prompt(1, 2), 24, GREEDY),
        Request("random", prompt(9, 3), 20, Sampling(temperature=0.9, seed=5)),
        Request("later", prompt(13, 4), 12, GREEDY),
    ]
    engine, _ = served.start(start_engine, with_drafts=False)
    without = [tokens_of(events) for events in run(engine, *asked)]
    engine, speculation = served.start(start_engine)
    assert [tokens_of(events) for events in run(engine, *asked)] == without
    assert len(served.drafted) > 20
    served.check_drafts()
    known = [*asked[1].prompt_ids, *without[1]]
    _, logits = target_states(served.target, served.sizes, known)
    assert np.argmax(logits[:-1], axis=-1).tolist() == known[1:], "the model is that of the reference"
    assert speculation.num_draft_tokens > speculation.num_accepted_tokens


def test_it_reads_of_a_prefix_that_is_found_what_the_model_kept_of_it(served, start_engine):
    begin = prompt(35, 6)
    engine, _ = served.start(start_engine)
    run(engine, Request("first", begin, 6, replace(GREEDY, presence_penalty=0.1)))
    assert not served.drafted, "with a penalty nothing is drafted, and nothing read"
    for number in range(3):
        [events] = run(engine, Request(str(number), (*begin, number), 8, GREEDY))
        assert events[0].num_cached_tokens >= 32
    served.check_drafts()


def test_what_it_drafts_stays_right_when_sequences_lose_their_pages_or_are_aborted(served, start_engine):
    asked = [Request(f"{seed}", prompt(7 + 3 * seed, seed), 22, GREEDY) for seed in range(4)]
    engine, _ = served.start(start_engine, with_drafts=False)
    without = [tokens_of(events) for events in run(engine, *asked)]
    engine, _ = served.start(start_engine, num_pages=12, states=StateShapes(3, 32))
    assert [tokens_of(events) for events in run(engine, *asked)] == without
    assert served.metrics.value("levserve_num_preemptions_total") > 0
    served.check_drafts()

    async def abort_soon(number):
        stream = engine.submit(Request(f"aborted {number}", prompt(5, number), 30, Sampling(seed=number)))
        async for event in stream:
            if event.token_ids and number % 3:
                stream.abort()

    async def main():
        await asyncio.gather(*(abort_soon(number) for number in range(12)))

    asyncio.run(asyncio.wait_for(main(), 60))
    assert engine.num_open == 0


@pytest.mark.slow
def test_of_a_model_without_a_head_it_reads_the_embeddings_and_whole_decode_steps_keep_what_it_reads_too(
    unchecked_types, start_engine
):
    whole = replace(SHAPES, has_whole_steps=True, has_sampling_variants=True)
    served = Served(Sizes(is_tied=True), whole)
    engine, _ = served.start(start_engine)
    begin, undrafted = prompt(9, 8), replace(GREEDY, presence_penalty=0.1)
    [events] = run(engine, Request("whole steps", begin, 24, undrafted))
    run(engine, Request("drafts", (*begin, *tokens_of(events), 1), 12, GREEDY))
    served.check_drafts()
