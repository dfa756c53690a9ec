"""Structured output over HTTP: constrained streams against free ones, and new schemas beside running streams."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.contenders import HttpServer, outcome_of
from benchmarks.latency import SETTLED_EVENTS
from benchmarks.load import Call, connect, send
from benchmarks.workload import Wave

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Mates:
    """Streams that run while requests come one after another."""

    wave: Wave  # its last prompt's length is that of the requests that come
    num_pairs: int  # of a request with a schema and a free one
    observed_s: float  # after each of them


LATE_TOKENS = 32  # of a request that comes
# Of the ratio to free streams, and of the streams beside new schemas; full and quick.
CONSTRAINED = {False: Wave("constrained", 32, 128, 64), True: Wave("constrained", 8, 16, 32)}
MATES = {False: Mates(Wave("mates", 32, 128, 384), 4, 1.0), True: Mates(Wave("mates", 8, 16, 900), 1, 0.2)}


def schema_of(seed: int) -> dict[str, Any]:
    """Return a schema that no other seed has; no answer of a few hundred tokens can end."""
    fields = {
        f"name_{seed}": {"type": "string", "maxLength": 12},
        f"count_{seed}": {"type": "integer", "minimum": 0},
        "kind": {"enum": ["one", "two", "three"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "maxItems": 4},
    }
    item = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 1000}


def measure_constrained(server: HttpServer, word_ids: list[int], wave: Wave, seed: int) -> dict[str, float]:
    """Measure a wave free and constrained by one schema, in an order that alternates with the seed's half.

    Returns:
        The seconds of both.
    """
    server.send([_call(server, wave.prompts(word_ids, seed)[0], 2, 0)])  # compiles the grammar
    seconds = {}
    for is_constrained in _order(seed // 2):  # two measurements share the seeds by turns
        prompts = wave.prompts(word_ids, 2 * seed + is_constrained)
        calls = [_call(server, prompt, wave.output_tokens, 0 if is_constrained else None) for prompt in prompts]
        outcome = outcome_of(*server.send(calls), wave.output_tokens)
        seconds["constrained_s" if is_constrained else "free_s"] = outcome.seconds
    return seconds


def measure_new_schema(server: HttpServer, word_ids: list[int], mates: Mates, seed: int) -> dict[str, list[float]]:
    """Measure running streams while requests come, by turns free and with a schema that was never seen.

    Returns:
        The tokens that the running streams got within a second of each request, by pairs of both kinds.
    """
    *running, _ = mates.wave.prompts(word_ids, seed)
    kinds = [is_new for pair in range(mates.num_pairs) for is_new in _order(pair)]
    calls: list[Call] = []
    for number, is_new in enumerate(kinds, start=seed * len(kinds)):
        prompt = mates.wave.prompts(word_ids, 1_000_000 + number)[-1]
        calls.append(_call(server, prompt, LATE_TOKENS, 1 + number if is_new else None))
    counts = asyncio.run(_tokens_beside(server, running, calls, mates))
    return {
        "mates_tokens_new_schema": [count for count, is_new in zip(counts, kinds, strict=True) if is_new],
        "mates_tokens_free": [count for count, is_new in zip(counts, kinds, strict=True) if not is_new],
    }


async def _tokens_beside(
    server: HttpServer, running: Sequence[list[int]], calls: Sequence[Call], mates: Mates
) -> list[float]:
    """Return the tokens that running streams get after each call came; the next one comes after its last token."""
    readers = [await connect(HOST, server.port, server.call(prompt, mates.wave.output_tokens)) for prompt in running]
    while any(len(reader.answer.event_s) < SETTLED_EVENTS for reader in readers):
        await asyncio.sleep(0.005)
    sent_s: list[float] = []
    for call in calls:
        sent_s.append((await send(HOST, server.port, call)).sent_s)
        await asyncio.sleep(sent_s[-1] + mates.observed_s - time.perf_counter())
    streams = [(await reader.done).event_s for reader in readers]
    assert all(sent_s[-1] + mates.observed_s < event_s[-1] for event_s in streams), "a stream ended too early"
    return [
        sum(_tokens_at(event_s, from_s + mates.observed_s) - _tokens_at(event_s, from_s) for event_s in streams)
        for from_s in sent_s
    ]


def _tokens_at(event_s: Sequence[float], at_s: float) -> float:
    """Return the tokens of a stream at a time, between two events in proportion.

    A second has so few steps that whole ones would say little: one more or less is several percent.
    """
    for number, (earlier, later) in enumerate(pairwise(event_s), start=1):
        if earlier <= at_s < later:
            return number + (at_s - earlier) / (later - earlier)
    return float(sum(event <= at_s for event in event_s))


def _order(number: int) -> tuple[bool, bool]:
    """Return which of two comes first, by turns."""
    return (True, False) if number % 2 else (False, True)


def _call(server: HttpServer, prompt: list[int], output_tokens: int, schema_seed: int | None) -> Call:
    call = server.call(prompt, output_tokens)
    if schema_seed is None:
        return call
    # The grammar keeps the answer from ending early.
    return Call(call.body | {"structured_outputs": {"json": schema_of(schema_seed)}, "ignore_eos": False})
