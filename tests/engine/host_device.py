"""A device in plain Python, so that thousands of requests go through the real loop in seconds."""

import numpy as np

NEVER_WRITTEN = 41  # not 0: a position that was never written must show


class HostResult:
    def __init__(self, token_ids):
        self._token_ids = np.array(token_ids, np.int32)

    def read(self):
        return self._token_ids

    def read_logprobs(self):
        return None


class HostDevice:
    """Counts as `HandCountedModel` does, one row after the other, reading back what lies in its pages.

    Where the sum of a sequence's tokens is `breaking_sum`, the scores are no numbers.
    """

    def __init__(self, *, num_slots, num_pages, page_size, vocab_size, breaking_sum=-1):
        self.num_steps = 0
        self._pages = np.full((num_pages, page_size), NEVER_WRITTEN)
        self._last_token_ids = [NEVER_WRITTEN] * num_slots
        self._vocab_size = vocab_size
        self._breaking_sum = breaking_sum

    def dispatch(self, plan, read_previous):
        self.num_steps += 1
        return HostResult([token_id for row in plan.seqs for token_id in self._run(row)])

    def _run(self, row):
        token_ids = row.token_ids or (self._last_token_ids[row.slot],)
        cache, pages = self._pages, row.sequence.pages
        page_size = cache.shape[1]
        for position, token_id in enumerate(token_ids, row.start):
            cache[pages[position // page_size], position % page_size] = token_id
        sampled, is_right = [], True
        for place in range(row.num_samples):
            total = int(cache[list(pages)].ravel()[: row.first_sampled + place].sum())
            token_id = total % self._vocab_size
            sampled.append(-1 if total == self._breaking_sum else token_id)
            if is_right:
                self._last_token_ids[row.slot] = token_id
            is_right = is_right and sampled[-1] in row.drafts[place : place + 1]
        return sampled
