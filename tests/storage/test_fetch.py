"""Slices fetched in parallel: a failure is the first one's, and names the object."""

import numpy as np
import pytest

from service.errors import TransferFailed
from service.observability.progress import Progress
from service.storage.fetch import ObjectFetch
from service.storage.objects import Extent, divide
from service.storage.retry import RetryBudget
from tests.stored import Puller


def test_a_slice_of_a_cancelled_transfer_is_not_asked_for(puller: Puller):
    with puller.source() as source:
        info = next(info for info in source.list() if info.name == "config.json")
        slices = divide(0, [Extent(info.size_bytes, 1)], chunk_bytes=1024, slice_bytes=1024)
        budget = RetryBudget(source.limits)
        budget.cancel()
        puller.bucket.faults([])
        with pytest.raises(TransferFailed, match="was stopped") as caught:
            ObjectFetch(source, info, slices, Progress()).fetch(0, np.empty(1024, np.uint8), budget)
    assert (caught.value.uri, caught.value.name) == (puller.bucket.uri("model"), "config.json")
    assert puller.bucket.requests() == []
