"""Proposers that know the text, or think they do."""

import random

from service.engine.schedule.proposers import Proposer


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
