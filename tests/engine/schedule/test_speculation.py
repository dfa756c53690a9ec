"""The policy: drafts only where the text was foreseen, and where steps with drafts are measured to be faster."""

import time
from collections import Counter

import pytest

from service.engine.request import Request, Sampling
from service.engine.schedule.sequence import Sequence
from service.engine.schedule.speculation import Speculation
from service.engine.schedule.step_costs import StepCosts
from service.engine.shapes import EngineShapes
from tests.engine.drafting import Oracle

SHAPES = EngineShapes(num_slots=16, num_pages=99, page_size=16, max_model_len=512, max_prefill_tokens=256, num_drafts=7)
DECODE_S = 0.01


def decoding(known=(1, 2, 3), *, num_output=4, max_tokens=400, sampling=None):
    """Return a sequence all of whose tokens are known."""
    sequence = Sequence(Request("a", tuple(known), max_tokens, sampling or Sampling()), 0, b"")
    sequence.slot = 0
    for token_id in range(num_output):
        sequence.append(token_id)
    sequence.num_planned = num_output
    sequence.num_computed = sequence.prefill_len = len(sequence.known_ids) - 1
    return sequence


def go_on(speculation, sequence, token_ids):
    """Let tokens come one by one, as without drafts."""
    for token_id in token_ids:
        sequence.append(token_id)
        sequence.num_planned += 1
        sequence.num_computed += 1
        speculation.choose([sequence])


def adaptive(proposers=None, *, decode_s=DECODE_S):
    speculation = Speculation(SHAPES, proposers)
    for _ in range(5):
        speculation.observe(1, 0, 0, decode_s)
    return speculation


def saying(token_ids):
    return Oracle(lambda sequence: token_ids)


def lengths(chosen):
    return [len(tokens) for tokens in chosen.values()]


def test_drafts_begin_when_tokens_have_come_as_foreseen_and_end_when_they_do_not():
    text = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]
    sequence, speculation = decoding((*text, 50, 51, 52), num_output=0), adaptive()
    for num_tokens in (2, 4, 8):
        speculation.observe(1, 1, num_tokens, 2 * DECODE_S)
    go_on(speculation, sequence, text[:4])
    assert speculation.choose([sequence]) == {}, "that three tokens occur again says little"
    go_on(speculation, sequence, text[4:9])
    assert speculation.choose([sequence])[sequence] == tuple(text[9:16])
    go_on(speculation, sequence, [90, 91, 92, 93])
    assert speculation.choose([sequence]) == {}


def test_a_step_with_drafts_that_takes_too_long_is_not_chosen_and_tried_again_some_day():
    speculation = adaptive([saying([5] * 9)])
    sequence = decoding()
    assert lengths(speculation.choose([sequence])) == [7]
    for num_tokens in (2, 4, 8):
        for _ in range(30):
            speculation.observe(1, 1, num_tokens, 20 * DECODE_S)
    assert speculation.choose([sequence]) == {}
    assert any(speculation.choose([sequence]) for _ in range(3_000))


def test_the_length_of_a_draft_follows_from_what_tokens_cost():
    speculation = adaptive([saying([5] * 9)])
    for num_tokens, elapsed_s in ((2, 1.1), (4, 1.2), (8, 40)):
        speculation.observe(1, 1, num_tokens, elapsed_s * DECODE_S)
    assert lengths(speculation.choose([decoding()])) == [3]


def test_nothing_is_chosen_before_a_step_was_measured():
    speculation = Speculation(SHAPES, [saying([5] * 9)])
    assert speculation.choose([decoding()]) == {}


def test_all_that_a_step_samples_fits_it():
    speculation = adaptive([saying([5] * 9)])
    sequences = [decoding() for _ in range(12)]
    chosen = speculation.choose(sequences)
    assert 0 < sum(lengths(chosen)) <= SHAPES.num_samples - len(sequences)
    assert len(chosen) <= SHAPES.row_counts[-1]


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({"max_tokens": 9}, 4),  # four tokens are known, the last is sampled after the drafts
        ({"max_tokens": 5}, 0),
        ({"num_output": 57}, 4),  # position 59 of a row of 64: the last token and the drafts behind it
        ({"num_output": 61}, 0),
        ({"sampling": Sampling(presence_penalty=0.1)}, 0),
        ({"sampling": Sampling(frequency_penalty=0.1)}, 0),
        ({"sampling": Sampling(repetition_penalty=1.1)}, 0),
    ],
    ids=str,
)
def test_a_draft_ends_where_its_sequence_or_its_row_ends(options, longest):
    speculation = Speculation(SHAPES, [saying([5] * 9)], is_adaptive=False)

    class Whole(Oracle):
        def propose(self, sequence, limit):
            return self._continuation(sequence)[:limit]

    speculation = Speculation(SHAPES, [Whole(lambda sequence: [5] * 9)], is_adaptive=False)
    assert lengths(speculation.choose([decoding(**options)])) == ([longest] if longest else [])


def test_a_stop_token_and_what_follows_it_are_not_drafted():
    sequence = decoding()
    stopped = Sequence(Request("b", (1,), 40, stop_ids=frozenset({6})), 0, b"")
    stopped.known_ids, stopped.output_ids = sequence.known_ids, sequence.output_ids
    stopped.num_planned, stopped.num_computed, stopped.slot = sequence.num_planned, sequence.num_computed, 0

    class Whole(Oracle):
        def propose(self, sequence, limit):
            return [5, 5, 6, 5][:limit]

    speculation = Speculation(SHAPES, [Whole(None)], is_adaptive=False)
    assert speculation.choose([stopped])[stopped] == (5, 5)


def test_a_proposer_that_raises_is_asked_no_more_and_the_others_are():
    class Raising(Oracle):
        num_calls = 0

        def propose(self, sequence, limit):
            self.num_calls += 1
            raise RuntimeError("a fault")

    raising = Raising(None)
    speculation = Speculation(SHAPES, [raising, saying([5] * 9)], is_adaptive=False)
    for _ in range(3):
        assert speculation.choose([decoding()])
    assert raising.num_calls == 1


class SlowModel:
    """A draft model that says one token, and takes a while to say it."""

    def __init__(self, token_id=5, token_s=0.0, is_behind=()):
        self.asked = []
        self._token_id, self._token_s, self._is_behind = token_id, token_s, list(is_behind)

    def catch_up(self, sequences):
        return [sequence for sequence in sequences if not (self._is_behind and self._is_behind.pop())]

    def draft(self, lengths):
        self.asked.append(list(lengths.values()))
        time.sleep(self._token_s * max(lengths.values()))
        return {sequence: [self._token_id] * length for sequence, length in lengths.items()}

    def forget(self, sequence):
        """Nothing is kept."""


def adaptive_with(model, proposers=(), **options):
    speculation = Speculation(SHAPES, proposers, model=model, **options)
    for _ in range(5):
        speculation.observe(1, 0, 0, DECODE_S)
    return speculation


def test_a_model_drafts_for_all_sequences_at_once_what_a_step_can_verify():
    model = SlowModel()
    speculation = adaptive_with(model, is_adaptive=False)
    assert speculation.may_draft([decoding()])
    assert model.asked == [], "it is asked only when the drafts are verified next"
    chosen = speculation.choose([decoding() for _ in range(3)], lambda sequence, length: min(length, 4))
    assert model.asked == [[4, 4, 4]]
    assert lengths(chosen) == [4, 4, 4]
    many = [decoding() for _ in range(15)]
    assert lengths(speculation.choose(many)) == [1]
    assert speculation.choose([decoding(sampling=Sampling(presence_penalty=0.1))]) == {}
    assert not speculation.may_draft([decoding() for _ in range(16)])


def test_a_model_that_has_yet_to_catch_up_drafts_later():
    speculation = adaptive_with(SlowModel(is_behind=[False, True]), is_adaptive=False)
    sequence = decoding()
    assert speculation.choose([sequence]) == {}
    assert lengths(speculation.choose([sequence])) == [7]


def test_a_model_is_asked_where_nothing_surer_is_foreseen():
    class Surer(Oracle):
        first_acceptance = 0.9

    class LessSure(Oracle):
        first_acceptance = 0.3

    for proposer, is_asked in ((Surer, False), (LessSure, True)):
        model = SlowModel()
        speculation = adaptive_with(model, [proposer(lambda sequence: [6] * 9)])
        [tokens] = speculation.choose([decoding()]).values()
        assert (tokens[0], bool(model.asked)) == ((5, True) if is_asked else (6, False))


def test_a_model_that_is_wrong_or_slow_is_asked_no_more_for_a_while():
    sequence, model = decoding(), SlowModel()
    speculation = adaptive_with(model)
    go_on(speculation, sequence, [9] * 40)
    assert 0 < len(model.asked) < 20
    slow = SlowModel(token_s=2 * DECODE_S)
    speculation = adaptive_with(slow)
    go_on(speculation, decoding(), [5] * 10)
    assert 0 < len(slow.asked) < 4
    assert any(speculation.may_draft([decoding()]) for _ in range(3_000)), "it may be faster some day"


def test_the_time_of_a_model_is_not_taken_for_that_of_a_step():
    speculation = adaptive_with(SlowModel(token_s=DECODE_S), is_adaptive=False)
    speculation.choose([decoding()])
    speculation.observe(1, 1, 8, 8 * DECODE_S)
    assert speculation.costs.more_s(1, 8) < DECODE_S
    assert speculation.costs.model_s(1, 7) >= 7 * DECODE_S


def test_costs_are_those_of_the_step_with_room_for_as_many_rows():
    costs = StepCosts((1, 4))
    assert costs.decode_s(3) is None
    costs.observe(2, 0, 0, 0.01)
    costs.observe(8, 0, 0, 0.02)
    costs.observe(8, 1, 8, 0.05)
    costs.observe(2, 3, 20, 0.11)
    assert costs.decode_s(7) == 0.02
    assert costs.more_s(1, 7) == pytest.approx(0.03)
    assert costs.more_s(2, 30) == pytest.approx(0.10)
    assert costs.more_s(2, 8) == 0


def test_a_single_slow_step_does_not_end_the_drafts_of_a_source_that_is_right():
    speculation = adaptive([saying([5] * 9)])
    speculation.observe(1, 1, 8, 100 * DECODE_S)
    assert lengths(speculation.choose([decoding()])) == [3]


@pytest.mark.parametrize("slowdown", [1, 10, 100])
def test_slow_steps_by_chance_delay_the_drafts_of_a_source_that_is_right_by_few_tokens(slowdown):
    """Each length's first steps are slow, as they are beside a process that takes the processor."""
    sequence, speculation, seen, num_tokens, num_steps = decoding(), adaptive([saying([5] * 9)]), Counter(), 0, 0
    while num_tokens < 300:
        chosen, num_steps = lengths(speculation.choose([sequence])), num_steps + 1
        length = chosen[0] if chosen else 0
        seen[length] += 1
        speculation.observe(1, len(chosen), 1 + length, (slowdown if length and seen[length] == 1 else 1.2) * DECODE_S)
        go_on(speculation, sequence, [5] * (1 + length))
        num_tokens += 1 + length
    assert num_steps < 100


def test_a_draft_that_is_really_too_slow_is_measured_ever_less_often():
    sequence, speculation, tried = decoding(), adaptive([saying([5] * 9)]), []
    for step in range(2000):
        chosen = lengths(speculation.choose([sequence]))
        tried += [step] * len(chosen)
        speculation.observe(1, len(chosen), 1 + sum(chosen), (30 if chosen else 1) * DECODE_S)
        go_on(speculation, sequence, [5])
    assert len(tried) < 40
    assert sum(step > 1000 for step in tried) < 12


def test_a_source_that_is_always_wrong_is_given_up_after_a_few_drafts():
    sequence, speculation = decoding(), adaptive([saying([5] * 9)])
    num_drafts = 0
    for _ in range(300):
        for length in lengths(speculation.choose([sequence])):
            num_drafts += 1
            speculation.observe(1, 1, 1 + length, 2 * DECODE_S)
        go_on(speculation, sequence, [9])
    assert num_drafts <= 3
