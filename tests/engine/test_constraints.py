"""Constrained sequences in a real engine: each token follows a rule that depends on the tokens before it."""

from copy import copy

import numpy as np
import pytest

from service.engine.constraint import Constraint
from service.engine.request import FinishReason, Request, Sampling
from service.engine.token_mask import pack_token_mask
from service.errors import ConstraintError
from tests.engine.conftest import SHAPES
from tests.engine.running import run, tokens_of

GREEDY = Sampling(temperature=0.0)
VOCAB = 97


class Remainders:
    """Token `i` of the output must leave the remainder (sum of the output before it + i) modulo 5; some are free."""

    def __init__(self, *, fails_to_fill_at=None, fails_to_accept_at=None, empty_at=None, free_every=None):
        self.accepted = []
        self._fails_to_fill_at, self._fails_to_accept_at = fails_to_fill_at, fails_to_accept_at
        self._empty_at, self._free_every = empty_at, free_every

    def allowed(self, output):
        if self._free_every and len(output) % self._free_every == 0:
            return set(range(VOCAB))
        return {t for t in range(VOCAB) if t % 5 == (sum(output) + len(output)) % 5}

    def copy(self):
        copied = copy(self)
        copied.accepted = list(self.accepted)
        return copied

    def forced_tokens(self):
        return []

    @property
    def is_free(self):
        return len(self.allowed(self.accepted)) == VOCAB

    def fill_mask(self, words):
        if len(self.accepted) == self._fails_to_fill_at:
            raise ConstraintError("cannot fill")
        allowed = set() if len(self.accepted) == self._empty_at else self.allowed(self.accepted)
        words[:] = 0
        if allowed:
            mask = pack_token_mask(allowed)
            words[: len(mask)] = mask

    def accept(self, token_id):
        assert token_id in self.allowed(self.accepted)
        if len(self.accepted) == self._fails_to_accept_at:
            raise ConstraintError("cannot accept")
        self.accepted.append(token_id)


def expected(prompt, num_tokens, rule=None):
    """Continue as the hand-counted model does: the sum if that is allowed, else the first of the equally likely."""
    output = []
    while len(output) < num_tokens:
        best = sum((*prompt, *output)) % VOCAB
        allowed = {best} if rule is None else rule.allowed(output)
        output.append(best if best in allowed else min(allowed))
    return output


def test_a_rule_of_the_tests_is_a_constraint():
    assert isinstance(Remainders(), Constraint)


def test_each_token_obeys_its_sequences_rule_and_neighbours_go_on_as_alone(engine):
    requests, wanted = [], []
    for i in range(10):
        prompt = tuple(range(1, 3 + 2 * i))
        rule = None if i % 3 == 0 else Remainders(free_every=4 if i % 3 == 1 else None)
        requests.append(Request(str(i), prompt, 5 + i, GREEDY, constraint=rule))
        wanted.append(expected(prompt, 5 + i, rule and Remainders(free_every=4 if i % 3 == 1 else None)))
    assert [tokens_of(events) for events in run(engine, *requests)] == wanted
    assert [request.constraint.accepted for request in requests if request.constraint] == [
        tokens for request, tokens in zip(requests, wanted, strict=True) if request.constraint
    ]


def test_a_rule_survives_the_loss_of_the_sequences_pages(start_engine, runner):
    """Together the sequences need twice the pages that there are."""
    requests = [Request(str(i), (i + 1, 2, 3), 30, GREEDY, constraint=Remainders()) for i in range(6)]
    results = run(start_engine(runner), *requests)
    assert [tokens_of(events) for events in results] == [expected(r.prompt_ids, 30, Remainders()) for r in requests]


def test_allowed_tokens_and_a_rule_hold_together(engine):
    allowed = frozenset(range(10, 30))
    request = Request(
        "both",
        (1, 2),
        8,
        Sampling(temperature=0.0, allowed_mask=pack_token_mask(allowed).tobytes()),
        constraint=Remainders(),
    )
    [events] = run(engine, request)
    assert len(tokens_of(events)) == 8
    assert allowed.issuperset(tokens_of(events))


@pytest.mark.parametrize(
    ("rule", "message", "least_tokens"),
    [
        (Remainders(fails_to_fill_at=0), "cannot fill", 0),
        (Remainders(fails_to_fill_at=3), "cannot fill", 3),
        (Remainders(fails_to_accept_at=3), "cannot accept", 3),
        (Remainders(empty_at=2), "no token", 2),
    ],
)
def test_a_rule_that_fails_ends_its_own_sequence_alone(engine, rule, message, least_tokens):
    failing = Request("failing", (4, 5), 12, GREEDY, constraint=rule)
    other = Request("other", (4, 5, 6), 12, GREEDY)
    error, events = run(engine, failing, other)
    assert isinstance(error, ConstraintError)
    assert message in str(error)
    assert len(rule.accepted) >= least_tokens
    assert tokens_of(events) == expected((4, 5, 6), 12)


def test_a_stop_token_ends_a_sequence_and_is_not_passed_to_its_rule(engine):
    wanted = expected((3, 4), 6, Remainders())
    request = Request("stopped", (3, 4), 20, GREEDY, stop_ids=frozenset({wanted[5]}), constraint=Remainders())
    [events] = run(engine, request)
    end = wanted.index(wanted[5])
    assert tokens_of(events) == wanted[:end]
    assert events[-1].finish_reason is FinishReason.STOP
    assert request.constraint.accepted == wanted[:end]


def test_random_tokens_obey_the_rule(engine):
    requests = [Request(str(i), (i, 7), 40, Sampling(seed=i), constraint=Remainders()) for i in range(1, 9)]
    for events in run(engine, *requests):
        output = tokens_of(events)
        assert len(output) == min(40, SHAPES.max_model_len - 2)
        assert all(np.isin(t, list(Remainders().allowed(output[:i]))) for i, t in enumerate(output))
