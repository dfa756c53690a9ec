"""Two engines of one process, beside two processes and beside one engine whose steps two devices share.

python -m benchmarks.data_parallel [--rounds 5] [--model 135M] [--output-tokens 24]

The devices are two of one CPU, with one core for each. Each form answers the same streams in turn. A rate is of tokens
by wall time, and of tokens by processor time of the servers, without the load generator.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks.checkpoint import SMOLLM_135M, make_checkpoint
from benchmarks.contenders import HttpServer, free_port, service_environment
from benchmarks.load import Call, completion_body, send_all
from benchmarks.machine import begun, processor_s

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "service" / "demo"
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
STREAMS, PROMPT_TOKENS = 16, 32
BASE, SHARED = "two engines", "tensor parallel"
# By the form: the cores of each of its processes, and their settings.
FORMS: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    BASE: (["0,1"], {**TWO_DEVICES, "DATA_PARALLEL": "2", "MAX_NUM_SEQS": "8"}),
    "two processes": (["0", "1"], {"MAX_NUM_SEQS": "8"}),
    SHARED: (["0,1"], {**TWO_DEVICES, "TENSOR_PARALLEL": "2", "MAX_NUM_SEQS": "16"}),
    "one engine": (["0,1"], {"MAX_NUM_SEQS": "16"}),
}


def main() -> None:
    """Print the rates of every round, and the ratios of their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output-tokens", type=int, default=192)
    parser.add_argument("--model", choices=["demo", "135M"], default="demo")
    options = parser.parse_args()
    forms = FORMS if options.model == "demo" else {name: FORMS[name] for name in FORMS if name != SHARED}  # 9 heads
    print(json.dumps(begun("benchmarks.data_parallel")))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model = DEMO if options.model == "demo" else make_checkpoint(Path(folder) / "model", SMOLLM_135M)
        servers = {
            name: [stack.enter_context(closing(start(model, Path(folder), cores, settings))) for cores in each]
            for name, (each, settings) in forms.items()
        }
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in forms}
        for number in range(options.rounds + 1):
            for name, processes in servers.items():
                by_wall, by_processor = run(processes, number, options.output_tokens)
                if number:  # the first warms all
                    rates[name].append((by_wall, by_processor))
                    print(f"{number} {name:16} {by_wall:7.0f} tokens/s {by_processor:7.0f} tokens a processor second")
    for unit, index in (("wall", 0), ("processor", 1)):
        medians = {name: statistics.median(pair[index] for pair in pairs) for name, pairs in rates.items()}
        for name in forms:
            ratios = [a[index] / b[index] for a, b in zip(rates[BASE], rates[name], strict=True)]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"{BASE} ÷ {name}, {unit} time: {medians[BASE] / medians[name]:.2f} ({spread})")


def start(model: Path, folder: Path, cores: str, settings: dict[str, str]) -> HttpServer:
    """Start a service on some cores."""
    port = free_port()
    environment = service_environment(model, folder, settings) | {"HOST": "127.0.0.1", "PORT": str(port)}
    command = ["taskset", "--cpu-list", cores, sys.executable, "-m", "service", "serve"]
    log = folder / f"{port}.log"
    return HttpServer(command, port, log, model="bench", ready_path="/health/ready", environment=environment)


def run(servers: Sequence[HttpServer], number: int, output_tokens: int) -> tuple[float, float]:
    """Answer all streams, shared out among servers; return tokens by wall time and by processor time."""
    prompts = [[5 + (number * STREAMS + i * 7 + j) % 2000 for j in range(PROMPT_TOKENS)] for i in range(STREAMS)]
    calls = [Call(completion_body("bench", prompt, output_tokens)) for prompt in prompts]

    async def send() -> None:
        parts = [calls[i :: len(servers)] for i in range(len(servers))]
        sent = [send_all("127.0.0.1", server.port, part) for server, part in zip(servers, parts, strict=True)]
        await asyncio.gather(*sent)

    before_s = sum(processor_s(server.pid) for server in servers)
    began_s = time.perf_counter()
    asyncio.run(send())
    wall_s = time.perf_counter() - began_s
    tokens = STREAMS * output_tokens
    return tokens / wall_s, tokens / (sum(processor_s(server.pid) for server in servers) - before_s)


if __name__ == "__main__":
    main()
