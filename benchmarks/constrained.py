"""Structured output over HTTP: constrained streams against free ones, and a new schema beside running streams."""

import asyncio
from typing import Any

from benchmarks.contenders import HttpServer, outcome_of
from benchmarks.latency import SETTLED_EVENTS
from benchmarks.load import Call, connect, send
from benchmarks.workload import Wave

HOST = "127.0.0.1"
LATE_TOKENS = 32  # of the request that comes late
OBSERVED_S = 1.0
# Of the ratio to free streams, and of the running streams with the one that comes late; full and quick.
CONSTRAINED = {False: Wave("constrained", 32, 128, 64), True: Wave("constrained", 8, 16, 32)}
MATES = {False: Wave("mates", 32, 128, 256), True: Wave("mates", 8, 16, 900)}


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
    """Measure a wave free and constrained by one schema; seeds alternate the order.

    Returns:
        The seconds of both.
    """
    server.send([_call(server, wave.prompts(word_ids, seed)[0], 2, 0)])  # compiles the grammar
    seconds = {}
    for is_constrained in (True, False) if seed % 2 else (False, True):
        prompts = wave.prompts(word_ids, 2 * seed + is_constrained)
        calls = [_call(server, prompt, wave.output_tokens, 0 if is_constrained else None) for prompt in prompts]
        outcome = outcome_of(*server.send(calls), wave.output_tokens)
        seconds["constrained_s" if is_constrained else "free_s"] = outcome.seconds
    return seconds


def measure_new_schema(server: HttpServer, word_ids: list[int], wave: Wave, seed: int) -> dict[str, float]:
    """Measure running streams when one more request comes, free or with a schema that was never seen.

    Returns:
        The tokens that the running streams got in the second after the request came, for both.
    """
    tokens = {}
    for is_new in (True, False) if seed % 2 else (False, True):
        *running, late = wave.prompts(word_ids, 2 * seed + is_new)
        call = _call(server, late, LATE_TOKENS, 1 + seed if is_new else None)
        key = "mates_tokens_new_schema" if is_new else "mates_tokens_free"
        tokens[key] = asyncio.run(_mates(server, running, call, wave.output_tokens))
    return tokens


async def _mates(server: HttpServer, running: list[list[int]], late: Call, output_tokens: int) -> float:
    readers = [await connect(HOST, server.port, server.call(prompt, output_tokens)) for prompt in running]
    while any(len(reader.answer.event_s) < SETTLED_EVENTS for reader in readers):
        await asyncio.sleep(0.005)
    answer = await send(HOST, server.port, late)
    answers = [await reader.done for reader in readers]
    until_s = answer.sent_s + OBSERVED_S
    assert all(until_s < mate.event_s[-1] for mate in answers), "a stream ended within the second that is measured"
    return float(sum(answer.sent_s < event_s <= until_s for mate in answers for event_s in mate.event_s))


def _call(server: HttpServer, prompt: list[int], output_tokens: int, schema_seed: int | None) -> Call:
    call = server.call(prompt, output_tokens)
    if schema_seed is None:
        return call
    # The grammar keeps the answer from ending early.
    return Call(call.body | {"structured_outputs": {"json": schema_of(schema_seed)}, "ignore_eos": False})
