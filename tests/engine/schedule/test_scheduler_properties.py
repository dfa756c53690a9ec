"""Random arrivals, lengths, stops and aborts over real compiled steps: the text is right and nothing is lost."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.engine.loop import StepPipeline
from service.engine.request import FinishReason, Request, Sampling
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.device_turns import DeviceTurns
from service.engine.schedule.scheduler import Scheduler
from tests.engine.conftest import SHAPES

# Prompts often begin alike, as conversations do, so that prefixes are found.
prompts = st.builds(
    lambda beginning, rest: (beginning * [7, 11, 13, 17, 19] + rest)[:30] or [1],
    st.integers(0, 5),
    st.lists(st.integers(0, 96), max_size=12),
)
request_shapes = st.tuples(
    prompts,
    st.integers(1, 18),  # max_tokens
    st.sets(st.integers(0, 96), max_size=3),  # stop tokens
    st.integers(0, 2),  # priority
)
happenings = st.lists(
    st.one_of(request_shapes, st.just("step"), st.tuples(st.just("abort"), st.integers(0, 20))), min_size=1, max_size=60
)


def expected_output(model, request: Request) -> tuple[list[int], FinishReason]:
    token_ids = model.expected(request.prompt_ids, request.max_tokens)
    for index, token_id in enumerate(token_ids):
        if token_id in request.stop_ids:
            return token_ids[:index], FinishReason.STOP
    return token_ids, FinishReason.LENGTH


class SteppedEngine:
    """A scheduler and the pipeline of the device thread, one step at a time."""

    def __init__(self, runner, num_pages):
        self.scheduler = Scheduler(
            num_slots=SHAPES.num_slots,
            num_pages=num_pages,
            page_size=SHAPES.page_size,
            chunking=Chunking.of(SHAPES),
        )
        self.pipeline = StepPipeline(self.scheduler, runner, lambda events: None, DeviceTurns().join())
        self.sequences = []

    def submit(self, prompt, max_tokens, stop_ids, priority):
        request = Request(
            str(len(self.sequences)),
            tuple(prompt),
            max_tokens,
            Sampling(temperature=0.0),
            frozenset(stop_ids),
            priority,
        )
        self.sequences.append(self.scheduler.add(request))

    def run_out(self):
        for _ in range(2000):
            if self.pipeline.is_idle:
                return
            self.pipeline.step()
        raise AssertionError("the engine does not come to an end")


@pytest.mark.usefixtures("unchecked_types")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(happenings=happenings, num_pages=st.sampled_from([12, 14, SHAPES.num_pages]))
def test_every_sequence_gets_its_own_text_and_every_page_comes_back(model, runner, happenings, num_pages):
    engine = SteppedEngine(runner, num_pages)
    aborted = set()
    for happening in happenings:
        match happening:
            case "step":
                engine.pipeline.step()
            case ("abort", index):
                if index < len(engine.sequences) and not engine.sequences[index].is_finished:
                    engine.scheduler.abort(engine.sequences[index])
                    aborted.add(index)
            case (prompt, max_tokens, stop_ids, priority):
                engine.submit(prompt, max_tokens, stop_ids, priority)
        engine.scheduler.check_integrity()
    engine.run_out()

    engine.scheduler.check_integrity()
    assert engine.scheduler.pages.num_available == num_pages
    for index, sequence in enumerate(engine.sequences):
        token_ids, reason = expected_output(model, sequence.request)
        if index in aborted:
            assert sequence.finish_reason is FinishReason.ABORT
            assert sequence.output_ids == token_ids[: len(sequence.output_ids)]
        else:
            assert (sequence.output_ids, sequence.finish_reason) == (token_ids, reason)
