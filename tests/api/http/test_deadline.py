import asyncio

import pytest

from service.api.http.deadline import Deadline
from service.errors import DeadlineExceeded

pytestmark = pytest.mark.anyio


async def test_a_deadline_counts_from_its_making_and_passes_results_on():
    deadline = Deadline(0.05)
    assert await deadline.within(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(DeadlineExceeded, match=r"0\.05 s"):
        await deadline.within(asyncio.sleep(10))
    with pytest.raises(DeadlineExceeded):
        await deadline.within(asyncio.sleep(10))


async def test_a_timeout_of_somebody_else_is_not_the_deadlines():
    async def fails():
        raise TimeoutError("other")

    with pytest.raises(TimeoutError, match="other"):
        await Deadline(5.0).within(fails())
