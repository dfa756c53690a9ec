"""Places for work go to clients in turn, so that one with much to do delays others by what it has begun alone."""

import asyncio
import random
from typing import NamedTuple

import pytest

from service.api.work.turns import Turns

pytestmark = pytest.mark.anyio


class Client(NamedTuple):
    name: str
    weight: float = 1.0


MANY, FEW = Client("many"), Client("few")


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_client_that_waits_behind_many_of_another_comes_next():
    turns, order = Turns(1), []
    first = await turns.take(MANY)

    async def wait(client):
        turn = await turns.take(client)
        order.append(client.name)
        turns.give_back(turn)

    waiting = [asyncio.ensure_future(wait(client)) for client in (MANY, MANY, MANY, FEW, MANY)]
    await settled()
    assert turns.num_waiting == 5
    turns.give_back(first)
    await asyncio.gather(*waiting)
    assert order[0] == "few"
    assert (turns.num_taken, turns.num_waiting) == (0, 0)


async def test_the_last_of_several_places_is_never_taken_by_one_client_alone():
    turns = Turns(3)
    for _ in range(2):
        await turns.take(MANY)
    third = asyncio.ensure_future(turns.take(MANY))
    await settled()
    assert not third.done()
    other = await turns.take(FEW)
    turns.give_back(other)
    await settled()
    assert not third.done()
    third.cancel()


async def test_time_is_shared_by_weight(monkeypatch):
    turns, had, now_s = Turns(1), {"light": 0, "heavy": 0}, 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)

    async def work(client):
        nonlocal now_s
        async with turns.held(client):
            await asyncio.sleep(0)  # until all wait
            had[client.name] += sum(had.values()) < 80
            now_s += 1.0

    clients = Client("light"), Client("heavy", 3.0)
    await asyncio.gather(*(work(client) for client in clients for _ in range(80)))
    assert had["heavy"] == pytest.approx(60, abs=2)


@pytest.mark.parametrize("seed", range(20))
async def test_no_place_is_lost_whoever_leaves_and_whenever(seed):
    rng = random.Random(seed)
    num_places = rng.randint(1, 4)
    turns, most = Turns(num_places), 0

    async def work(client):
        nonlocal most
        turn = await turns.take(client)
        most = max(most, turns.num_taken)
        try:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        finally:
            turns.give_back(turn)

    tasks = [asyncio.ensure_future(work(Client(rng.choice("abc"), rng.choice((1.0, 2.0))))) for _ in range(60)]
    for task in rng.sample(tasks, 30):
        await asyncio.sleep(0)
        task.cancel()
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (turns.num_taken, turns.num_waiting) == (0, 0)
    assert most <= num_places
