"""Levserve's encoder without HTTP, and its compiled steps without the encoder. Settings come from the environment.

MODEL_URI=CHECKPOINT python -m benchmarks.embeddings.worker
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.peers.worker import Generate, run_worker
from service.encoder.batcher import Batcher
from service.encoder.encoder import TextEncoder
from service.encoder.request import EncodeRequest
from service.encoder.runner import EncoderRunner
from service.observability.metrics import Metrics
from service.settings.sources import load_settings
from service.start.context import StartContext
from service.start.load import ModelStart
from service.start.progress import StartProgress


def load() -> tuple[Mapping[str, Generate], dict[str, Any]]:
    """Load the model in the same way as the service."""
    import jax

    metrics = Metrics()
    start = ModelStart(StartContext(load_settings({}, None), metrics, StartProgress(metrics)))
    encoder = start.wait_for_model().running.thread
    start.wait_until_ready()
    facts = {"jax": jax.__version__, "device": jax.devices()[0].device_kind}
    tasks = {
        "encode": lambda texts, num_clients: asyncio.run(_encode(encoder, texts, num_clients)),
        "bare": lambda texts, num_clients: _run_steps(encoder.runner, texts, num_clients),
    }
    return tasks, facts


async def _encode(encoder: TextEncoder, texts: list[list[int]], num_clients: int) -> dict[str, Any]:
    """Have clients send a text each, and the next one as soon as it is answered."""
    left: Iterator[tuple[int, list[int]]] = iter(enumerate(texts))
    vectors: dict[int, list[float]] = {}

    async def client() -> None:
        for number, text in left:
            [vector] = await encoder.submit(EncodeRequest(str(number), (tuple(text),)))
            vectors[number] = vector.tolist()

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return {"vector": vectors[0]}


def _run_steps(runner: EncoderRunner, texts: list[list[int]], num_clients: int) -> dict[str, Any]:
    """Run the steps of as many texts at once as there are clients, one step after the other."""
    vectors = {}
    for first in range(0, len(texts), num_clients):
        batcher = Batcher(runner.shapes)
        batcher.add(EncodeRequest("bare", tuple(map(tuple, texts[first : first + num_clients]))))
        started = []
        while (plan := batcher.plan(runner.usable_buckets())) is not None:
            started.append((plan.texts, runner.dispatch(plan)))
        for planned, rows in started:
            numbers = [first + text.number for text in planned]
            vectors.update(zip(numbers, runner.read(rows, len(planned)), strict=True))
    return {"vector": vectors[0].tolist()}


if __name__ == "__main__":
    run_worker(load)
