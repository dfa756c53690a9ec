"""The queue of waiting sequences: by priority, then fairly among flows.

The requests of one API key form a flow, and flows share the device by weight. Each flow has a virtual token counter:
the tokens served to it, divided by its weight. The flow with the lowest counter is next. A flow that begins to wait
starts no lower than those that wait already, so that idleness earns nothing.

Source: Sheng et al. 2023, "Fairness in Serving Large Language Models" (virtual token counter), arXiv:2401.00588
"""

from bisect import insort
from collections.abc import Callable, Iterator

from service.engine.schedule.sequence import Sequence

OUTPUT_COST = 2  # of a sampled token, in prompt tokens; as in the source


class Waiting:
    """A queue for each flow; the next sequence is found in time that does not depend on how many wait."""

    def __init__(self) -> None:
        self._by_flow: dict[str, list[Sequence]] = {}  # those that wait, each list by rank and never empty
        self._served: dict[str, float] = {}  # counters of every flow so far, in tokens divided by weight
        self._last_flow: str | None = None  # the last that stopped waiting
        self._num_seqs = 0

    def __len__(self) -> int:
        """Return the number of waiting sequences."""
        return self._num_seqs

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate over the sequences, in no particular order."""
        return (sequence for sequences in self._by_flow.values() for sequence in sequences)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        flow = sequence.request.flow
        if flow not in self._by_flow:
            self._served[flow] = max(self._served.get(flow, 0.0), self._floor())
            self._by_flow[flow] = []
        insort(self._by_flow[flow], sequence, key=lambda s: s.rank)
        self._num_seqs += 1

    def first(self) -> Sequence:
        """Return the sequence to admit next; the queue must not be empty."""
        flow = min(self._by_flow, key=self._order)
        return self._by_flow[flow][0]

    def first_of(self, may_run: Callable[[Sequence], bool]) -> Sequence | None:
        """Return the first sequence, in that order, of those for which a function is true; None if there is none."""
        found = (next(filter(may_run, sequences), None) for sequences in self._by_flow.values())
        return min((sequence for sequence in found if sequence is not None), key=self._rank, default=None)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence from the queue."""
        flow = sequence.request.flow
        self._by_flow[flow].remove(sequence)
        self._num_seqs -= 1
        if not self._by_flow[flow]:
            del self._by_flow[flow]
            self._last_flow = flow

    def charge_prompt(self, sequence: Sequence) -> None:
        """Count the prompt of a sequence that begins; cached or not, so that a share depends on no other client."""
        self._charge(sequence, sequence.prompt_len)

    def charge_token(self, sequence: Sequence) -> None:
        """Count a token that was sampled for a sequence."""
        self._charge(sequence, OUTPUT_COST)

    def _charge(self, sequence: Sequence, num_tokens: int) -> None:
        self._served[sequence.request.flow] += num_tokens / sequence.request.weight

    def _floor(self) -> float:
        """Return the least counter of a flow that begins to wait."""
        if self._by_flow:
            return min(self._served[flow] for flow in self._by_flow)
        return 0.0 if self._last_flow is None else self._served[self._last_flow]

    def _order(self, flow: str) -> tuple[int, float, int]:
        return self._rank(self._by_flow[flow][0])

    def _rank(self, sequence: Sequence) -> tuple[int, float, int]:
        return sequence.request.priority, self._served[sequence.request.flow], sequence.arrival
