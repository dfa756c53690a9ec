"""The positions of each sequence for which a draft model or a head has keys and values.

Every page of the target has a twin under the same number, where what drafts keeps its keys and values of the same
positions. A page that the prefix cache has found counts as computed if its twin was written for the same text, which
its key says; other positions are computed anew. This is pure bookkeeping, and a mistake in it would make drafts worse
and change no answer.
"""

from dataclasses import dataclass, field

from service.engine.schedule.pages import extend_keys
from service.engine.schedule.sequence import Sequence


@dataclass(slots=True)
class Computed:
    """How far a draft model is with a sequence."""

    num_positions: int  # of known tokens
    last_chunk: int  # the sequence's, when they were found: it is another one after a preemption
    drafted: list[int] = field(default_factory=list)  # tokens at the positions after those, which may come or not


class TwinPages:
    """The twins of all pages, by what they hold."""

    def __init__(self, page_size: int, shift: int = 0) -> None:
        """Know nothing yet.

        Args:
            page_size: tokens of a page.
            shift: by how many positions after its own a token is that is read at a position. With any, what is read of
                the last position of a page depends on the next page too, and so may be another's; and what was drafted
                is read anew.
        """
        self._page_size, self._shift = page_size, shift
        self._keys: dict[int, bytes] = {}  # of the pages whose twins are whole
        self._computed: dict[Sequence, Computed] = {}

    def num_computed(self, sequence: Sequence) -> int:
        """Return how many leading positions of a running sequence's known tokens are computed."""
        computed = self._computed.get(sequence)
        if computed is None or computed.last_chunk != sequence.last_chunk:
            computed = self._computed[sequence] = Computed(self._num_found(sequence), sequence.last_chunk)
        came = sequence.known_ids[computed.num_positions : computed.num_positions + len(computed.drafted)]
        for token_id, drafted in zip(came, computed.drafted, strict=False):
            if token_id != drafted:
                break
            computed.num_positions += 1
        computed.drafted = []
        return computed.num_positions

    def write(self, sequence: Sequence, start: int, end: int, drafted: list[int] | None = None) -> None:
        """Note that positions were computed, after all those before them.

        Args:
            sequence: whose they are.
            start: the first of them.
            end: the one after the last known token among them.
            drafted: tokens of those that follow; None for none.
        """
        computed = self._computed[sequence]
        after = end + len(drafted or ())
        for page in sequence.pages[start // self._page_size : -(-after // self._page_size)]:
            self._keys.pop(page, None)
        computed.num_positions, computed.drafted = end, [] if self._shift else list(drafted or ())
        self._keep(sequence, start // self._page_size, end)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept of a sequence that ends, or was never seen; its whole pages stay known by their keys."""
        computed = self._computed.get(sequence)
        if computed is not None and sequence.pages and computed.last_chunk == sequence.last_chunk:
            known, root, media = sequence.known_ids, sequence.root_key, sequence.request.media
            extend_keys(sequence.page_keys, root, known, self._page_size, media)
            self._keep(sequence, 0, self.num_computed(sequence))
        self._computed.pop(sequence, None)

    def _keep(self, sequence: Sequence, first: int, num_positions: int) -> None:
        """Keep the keys of the whole pages from the first one on."""
        last = min(num_positions // self._page_size, len(sequence.page_keys))
        self._keys |= zip(sequence.pages[first:last], sequence.page_keys[first:last], strict=False)

    def _num_found(self, sequence: Sequence) -> int:
        """Return how many leading positions lie in twins that hold the same text."""
        num_found = 0
        for page, key in zip(sequence.pages, sequence.page_keys, strict=False):
            if self._keys.get(page) != key:
                break
            num_found += 1
        return max(min(num_found * self._page_size, len(sequence.known_ids) - 1) - self._shift, 0)
