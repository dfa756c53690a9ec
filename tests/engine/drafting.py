"""A model whose texts seldom break, its executables, and proposers that know its texts, or think they do."""

import functools
import random

import jax.numpy as jnp

from service.compile.aot import compile_programs
from service.engine.schedule.proposers import Proposer
from service.engine.shapes import EngineShapes
from service.engine.steps.programs import engine_programs
from tests.engine.test_sampled_requests import VOCAB, HandScoredModel

SHAPES = EngineShapes(
    num_slots=3, num_pages=24, page_size=4, max_model_len=48, max_prefill_tokens=16, row_tokens=8, num_drafts=5
)

BREAKING_SUM = 613  # after tokens of this sum the logits are NaN


class LongScoredModel(HandScoredModel):
    """One whose texts seldom break."""

    def logits(self, weights, hidden, num_used, *, stays_split=False):
        sums = hidden[:, :1].astype(jnp.int32)
        tokens = jnp.arange(VOCAB)[None]
        scores = ((sums * 7 + tokens * tokens * 3 + sums * tokens) % 31).astype(jnp.float32) / 4 - 3
        return jnp.where((sums == BREAKING_SUM) & (tokens == 5), jnp.nan, scores)


def executables_of(programs):
    """Return the executables of programs, by name."""
    return {name: compiled.executable for name, compiled in compile_programs(programs, num_threads=2).items()}


@functools.cache
def scored_executables(shapes):
    """Return those of an engine of this model, compiled once for all tests."""
    return executables_of(engine_programs(LongScoredModel(), shapes, {}))


class Oracle(Proposer):
    """Proposes what a function of the known tokens says will come, with some tokens replaced by wrong ones."""

    first_acceptance = 1.0

    def __init__(self, continuation, wrong=0.0, seed=0):
        self._continuation, self._wrong = continuation, wrong
        self._random = random.Random(seed)
        self.sequences = set()

    def propose(self, sequence, limit):
        self.sequences.add(sequence)
        tokens = self._continuation(sequence)[: self._random.randint(1, limit)]
        return [token_id + 1 if self._random.random() < self._wrong else token_id for token_id in tokens]

    def forget(self, sequence):
        self.sequences.discard(sequence)
