"""Levserve's engine without HTTP, and its compiled steps without the engine. Settings come from the environment.

MODEL_URI=CHECKPOINT python -m benchmarks.engine_worker
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.bare_steps import BareSteps
from benchmarks.peers.worker import Generate, run_worker
from service.engine.engine import Engine
from service.engine.request import Request, Sampling
from service.observability.metrics import Metrics
from service.settings.sources import load_settings
from service.start.context import StartContext
from service.start.load import ModelStart
from service.start.progress import StartProgress

GREEDY = Sampling(temperature=0.0)


def load() -> tuple[Mapping[str, Generate], dict[str, Any]]:
    """Load the model in the same way as the service."""
    import jax

    metrics = Metrics()
    start = ModelStart(StartContext(load_settings({}, None), metrics, StartProgress(metrics)))
    loaded = start.wait_for_model()
    start.wait_until_ready()

    def generate(prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        return asyncio.run(_generate(loaded.running.thread, prompts, output_tokens))

    bare = BareSteps(loaded.running.thread)
    return {"generate": generate, "bare": bare.run}, {"jax": jax.__version__, "device": jax.devices()[0].device_kind}


async def _generate(engine: Engine, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
    started_s = time.perf_counter()
    requests = [
        Request(f"{started_s}-{i}", tuple(prompt), output_tokens, sampling=GREEDY) for i, prompt in enumerate(prompts)
    ]
    read = await asyncio.gather(*(_read(engine, request) for request in requests))
    return {
        "token_ids": [token_ids for token_ids, _ in read],
        "token_s": [[time_s - started_s for time_s in times_s] for _, times_s in read],
    }


async def _read(engine: Engine, request: Request) -> tuple[list[int], list[float]]:
    token_ids: list[int] = []
    times_s: list[float] = []
    async for event in engine.submit(request):
        token_ids += event.token_ids
        times_s += [time.perf_counter()] * len(event.token_ids)
    return token_ids, times_s


if __name__ == "__main__":
    run_worker(load)
