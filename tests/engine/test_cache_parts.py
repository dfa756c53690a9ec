"""The parts of a cache that no step has reached yet: made when a step needs them, or while nobody waits for them."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from service.engine.request import Request, Sampling
from service.engine.runner import Runner

GREEDY = Sampling(temperature=0.0)
SHORT, LONG = (2, 3), (2, 3, 5, 7, 11)  # less than a page, and more


class ReadingRunner:
    """A runner that counts the steps that nobody has read yet, and notes their number when pages are made."""

    def __init__(self, runner):
        self._runner = runner
        self._num_unread = 0
        self.unread_when_pages_were_made = []

    waited_for_compile_s = 0.0

    def available_steps(self):
        return self._runner.available_steps()

    @property
    def has_caches(self):
        return self._runner.has_caches

    def copy_pages(self, copies):
        if copies and not self.has_caches:
            self.unread_when_pages_were_made.append(self._num_unread)
        self._runner.copy_pages(copies)

    def dispatch(self, plan, read_previous):
        result = self._runner.dispatch(plan, read_previous)
        self._num_unread += 1

        def read():
            self._num_unread -= 1
            return result.read()

        return SimpleNamespace(read=read, read_logprobs=result.read_logprobs)


@pytest.fixture
def cold_runner(executables, model, shapes):
    """A runner that has made nothing of its caches."""
    return Runner(shapes, model.layer_groups, {}, executables)


def continue_all(engine, prompts, num_tokens):
    async def one(number, prompt):
        request = Request(str(number), prompt, num_tokens, GREEDY)
        return [token_id async for event in engine.submit(request) for token_id in event.token_ids]

    async def main():
        return await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))

    return asyncio.run(main())


def test_a_short_request_makes_only_what_its_steps_reach(start_engine, cold_runner, model):
    assert not cold_runner.has_caches
    engine = start_engine(cold_runner)
    assert continue_all(engine, [SHORT], 1) == [model.expected(SHORT, 1)]
    assert cold_runner.has_caches == (not model.has_slot_cache)  # beside rows, slots and pages are parts of their own
    assert continue_all(engine, [LONG], 8) == [model.expected(LONG, 8)]
    assert cold_runner.has_caches


def test_tokens_are_out_before_pages_are_made(start_engine, cold_runner, model):
    watched = ReadingRunner(cold_runner)
    assert continue_all(start_engine(watched), [LONG], 8) == [model.expected(LONG, 8)]
    assert watched.unread_when_pages_were_made == [0] * model.has_slot_cache


def test_caches_are_filled_beside_steps(start_engine, cold_runner, model):
    engine = start_engine(cold_runner)
    prompts = [tuple(range(i + 1, i + 7)) for i in range(12)]
    fillers = [threading.Thread(target=cold_runner.fill_caches) for _ in range(3)]
    for filler in fillers:
        filler.start()
    assert continue_all(engine, prompts, 10) == [model.expected(prompt, 10) for prompt in prompts]
    for filler in fillers:
        filler.join()
    assert cold_runner.has_caches
