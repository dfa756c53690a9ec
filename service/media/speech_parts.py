"""Cut a recording by its spans of speech: join them, or group them into parts that are decoded apart."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from service.media.samples import SAMPLING_RATE, Samples, SampleSpan


class JoinedSpeech:
    """The speech of a recording without the silence between, and where its times were before."""

    def __init__(self, samples: Samples, spans: Sequence[SampleSpan]) -> None:
        parts = [samples[span.begin : span.end] for span in spans]
        self.samples: Samples = np.concatenate(parts) if parts else samples[:0]
        self._begins = [span.begin / SAMPLING_RATE for span in spans]
        self._ends = (np.cumsum([span.end - span.begin for span in spans]) / SAMPLING_RATE).tolist()

    def original_s(self, joined_s: float, *, is_end: bool = False) -> float:
        """Return when something was before the silence was cut out; an end at a cut belongs to what is before it."""
        if not self._ends:
            return joined_s
        find = bisect_left if is_end else bisect_right
        part = min(find(self._ends, joined_s), len(self._ends) - 1)
        before_s = self._ends[part - 1] if part else 0.0
        return self._begins[part] + joined_s - before_s


def grouped(spans: Sequence[SampleSpan], max_samples: int) -> list[SampleSpan]:
    """Return spans, neighbours joined with the silence between them while they stay within a number of samples."""
    groups: list[SampleSpan] = []
    for span in spans:
        if groups and span.end - groups[-1].begin <= max_samples:
            groups[-1] = SampleSpan(groups[-1].begin, span.end)
        else:
            groups.append(span)
    return groups
