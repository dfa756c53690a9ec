"""Threads for work on texts: what the work returns and raises, and which thread does it."""

import asyncio
import threading

import pytest

from service.api.work.text_threads import MAX_TEXT_THREADS, TextThreads

pytestmark = pytest.mark.anyio


class Panic(BaseException):
    pass


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize(("error", "raised"), [(ValueError("mine"), ValueError), (Panic(), RuntimeError),
                                               (StopIteration(), RuntimeError)])  # fmt: skip
async def test_what_work_raises_is_raised_as_an_error_that_ends_no_task(is_long, error, raised):
    threads = TextThreads()
    with pytest.raises(raised) as caught:
        await threads.run(raising(error), is_long=is_long)
    assert error in (caught.value, caught.value.__cause__)
    assert await threads.run(lambda: "next", is_long=is_long) == "next"
    assert threads.short.num_taken == threads.long.num_taken == 0


async def test_short_work_is_done_by_a_thread_that_has_done_some():
    threads = TextThreads()
    assert await threads.run(threading.current_thread) == await threads.run(threading.current_thread)


async def test_long_work_has_a_thread_of_its_own_at_a_low_priority():
    lowered = []
    threads = TextThreads(lambda: lowered.append(threading.current_thread()))
    used = [await threads.run(threading.current_thread, is_long=True) for _ in range(2)]
    assert lowered == used
    assert await threads.run(threading.current_thread) not in lowered


async def test_work_that_nothing_awaits_any_more_has_its_place_until_it_ends():
    threads, may_end = TextThreads(), threading.Event()
    waiting = [asyncio.ensure_future(threads.run(may_end.wait)) for _ in range(MAX_TEXT_THREADS - 1)]
    while threads.short.num_taken < len(waiting):
        await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert threads.short.num_taken == len(waiting)
    may_end.set()
    while threads.short.num_taken:
        await asyncio.sleep(0.001)
