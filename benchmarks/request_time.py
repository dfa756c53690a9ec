"""Processor time of one request of each interface, without a model: an engine that answers 8 tokens at once.

    python -m benchmarks.request_time --rounds 20
    python -m benchmarks.request_time --rounds 20 --other ../other-checkout

The figures are of the whole service, the process for long bodies included, in milliseconds. With another checkout each
round measures both, in turn, and the ratio is that of this one to the other, round by round.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import tokenizers
from starlette.types import Message

from service.api.application import create_api
from service.api.backend import OneModel
from service.api.http.access_log import AccessLog
from service.api.served import ServedModel
from service.engine.request import FinishReason, Request, TokenEvent
from service.observability.clock import Clock
from service.observability.metrics import Metrics
from service.text.chat_template import ChatTemplate
from service.text.generation_defaults import GenerationDefaults
from service.text.tokenizer import Tokenizer

DEMO = Path("service/demo")
MODEL = "demo"
LAST_TOKEN = 47
EVENTS = [
    *(TokenEvent((token_id,)) for token_id in range(40, LAST_TOKEN)),
    TokenEvent((LAST_TOKEN,), FinishReason.LENGTH),
]
WORDS = "The quick brown fox jumps over the lazy dog and runs through the forest. " * 2000
QUESTION = {"role": "user", "content": "What is the capital of France?"}
CHAT = {"messages": [{"role": "system", "content": "You are a helpful assistant."}, QUESTION], "max_tokens": 8}
TURNS = [{"role": ("user", "assistant")[number % 2], "content": WORDS[:80]} for number in range(1000)]
REQUESTS: Mapping[str, tuple[str, dict[str, Any], int]] = {  # path, body, and how many to measure at a time
    "chat": ("/v1/chat/completions", CHAT, 30),
    "completion": ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8}, 30),
    "response": ("/v1/responses", {"input": [QUESTION], "max_output_tokens": 8}, 30),
    "message": ("/v1/messages", {"messages": [QUESTION], "max_tokens": 8}, 30),
    "ollama": ("/api/chat", {"messages": [QUESTION], "stream": False}, 30),
    "response of 100 KB": ("/v1/responses", {"input": WORDS[:100_000], "max_output_tokens": 8}, 4),
    "response of 1000 turns": ("/v1/responses", {"input": [*TURNS, QUESTION], "max_output_tokens": 8}, 4),
}


class EchoStream:
    """A sequence that generates the same tokens whatever it is asked."""

    waited_for_compile_s = 0.0

    def __init__(self, request: Request) -> None:
        self.request, self.clock = request, Clock(time.perf_counter())

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        self.clock.scheduled_s = self.clock.first_token_s = time.perf_counter()
        for event in EVENTS:
            await asyncio.sleep(0)
            self.clock.last_token_s = time.perf_counter()
            yield event

    def abort(self) -> None:
        """Do nothing."""


class EchoEngine:
    """An engine of such sequences."""

    def submit(self, request: Request) -> EchoStream:
        """Return the sequence of a request."""
        return EchoStream(request)


class Service:
    """The API of the demo model's tokenizer and template."""

    def __init__(self) -> None:
        names = json.loads((DEMO / "tokenizer_config.json").read_text())
        special = {name: names[name] for name in ("bos_token", "eos_token") if isinstance(names.get(name), str)}
        tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json")), special_tokens=special)
        model = ServedModel(
            name=MODEL,
            created=0,
            engine=EchoEngine(),  # pyright: ignore[reportArgumentType]
            tokenizer=tokenizer,
            chat_template=ChatTemplate((DEMO / "chat_template.jinja").read_text(), special),
            max_model_len=100_000,
            vocab_size=tokenizer.vocab_size,
            defaults=GenerationDefaults(),
            stop_ids=frozenset(),
            system_fingerprint="",
            number_formats={},
        )
        metrics = Metrics()
        self._api = create_api(OneModel(model), metrics)
        self._app = AccessLog(self._api, metrics=metrics)

    def processor_s(self) -> float:
        """Return the processor time of this process and of that for long bodies, so far."""
        pid = self._api.state.context.long_bodies.process.pid
        times = None if pid is None else psutil.Process(pid).cpu_times()
        return time.process_time() + (0.0 if times is None else times.user + times.system)

    async def ask(self, path: str, content: bytes) -> None:
        """Answer a request; raises RuntimeError for another status than 200."""
        statuses, asked = list[int](), [{"type": "http.request", "body": content}]

        async def receive() -> Message:
            if not asked:
                await asyncio.Event().wait()
            return asked.pop()

        async def send(message: Message) -> None:
            if "status" in message:
                statuses.append(message["status"])

        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        await self._app(scope, receive, send)
        if statuses != [200]:
            raise RuntimeError(f"{path} answered {statuses}")


def answer_measurements() -> None:
    """Measure what the input asks for, a name a line, and print the milliseconds of one request."""
    service, loop = Service(), asyncio.new_event_loop()
    for line in sys.stdin:
        path, body, num_requests = REQUESTS[line.strip()]
        content = json.dumps({"model": MODEL, **body}).encode()

        async def ask_all(path: str = path, content: bytes = content, num_requests: int = num_requests) -> None:
            for _ in range(num_requests):
                await service.ask(path, content)

        gc.collect()
        gc.freeze()  # as a start does
        begin_s = service.processor_s()
        loop.run_until_complete(ask_all())
        print(1000 * (service.processor_s() - begin_s) / num_requests, flush=True)
    loop.run_until_complete(loop.shutdown_asyncgens())


class Measured:
    """A process that measures one checkout."""

    def __init__(self, checkout: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--answer"],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def milliseconds(self, name: str) -> float:
        """Measure a request."""
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Print a line of JSON for each request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer_measurements()
        return
    checkouts = [Path.cwd(), *([] if options.other is None else [options.other.resolve()])]
    processes = [Measured(checkout) for checkout in checkouts]
    for name in REQUESTS:
        for process in processes:
            process.milliseconds(name)  # warms it
        rounds = [[process.milliseconds(name) for process in processes] for _ in range(options.rounds)]
        figures: dict[str, Any] = {"request": name, "ms": round(statistics.median(own for own, *_ in rounds), 3)}
        if options.other is not None:
            ratios = sorted(own / other for own, other in rounds)
            figures["other_ms"] = round(statistics.median(other for _, other in rounds), 3)
            figures["ratio"] = round(statistics.median(ratios), 3)
            figures["ratios"] = [round(ratios[len(ratios) // 10], 3), round(ratios[-1 - len(ratios) // 10], 3)]
        print(json.dumps(figures), flush=True)
    for process in processes:
        process.end()


if __name__ == "__main__":
    main()
