"""PyTorch's decode steps of the same 8B model on the same card, in a CUDA graph, and cuBLAS's matrix products.

They are what a careful program in PyTorch reaches: library kernels alone, one launch a step, no kernel of its own.
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.device_check.report import Row, write_part
from benchmarks.device_decode import LLAMA_8B, TINY

BATCHES, TINY_BATCHES = (1, 8, 32, 64), (1, 4)
CONTEXT, TINY_CONTEXT = 1024, 64
ROUNDS, STEPS = 5, 20
COPY_BYTES, PEAK_SIZE = 2**31, 8192


def main(out: Path, *, is_tiny: bool) -> None:
    """Measure every batch size, if this machine has PyTorch and a GPU that it knows."""
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    if torch is None or not torch.cuda.is_available():
        write_part(out, "peer", [{"check": "PyTorch", "passed": True, "note": "not here, or without a GPU"}])
        return
    torch.manual_seed(0)
    with torch.inference_mode():
        rows = [_ceilings(torch), *_steps(torch, out, is_tiny=is_tiny)]
    write_part(out, "peer", rows)


def _ceilings(torch: Any) -> Row:
    """Return the bytes per second of a copy, and the operations per second of a product of random matrices."""
    source = torch.rand(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    copy_s = _median_s(torch, lambda: target.copy_(source))
    left, right = (torch.randn(PEAK_SIZE, PEAK_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product_s = _median_s(torch, lambda: left @ right)
    return {
        "check": f"{torch.__version__}, {torch.cuda.get_device_name()}",
        "passed": True,
        "copy, GB/s": round(2 * COPY_BYTES / copy_s / 1e9, 1),
        "product, TFLOP/s": round(2 * PEAK_SIZE**3 / product_s / 1e12, 1),
    }


def _steps(torch: Any, out: Path, *, is_tiny: bool) -> list[Row]:
    shape = TINY if is_tiny else LLAMA_8B
    context = TINY_CONTEXT if is_tiny else CONTEXT
    path = out / "decode.json"
    ours = {row["check"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    weights = _Weights(torch, shape)
    rows = []
    for batch in TINY_BATCHES if is_tiny else BATCHES:
        step_s = _step_s(torch, weights, batch, context)
        row: Row = {
            "check": f"{batch} sequences of {context}",
            "passed": True,
            "ms a step": round(step_s * 1e3, 3),
        }
        of_service = ours.get(row["check"])
        if of_service is not None:
            row["speed of the service's steps"] = round(step_s * 1e3 / of_service["ms a step"], 3)
        rows.append(row)
    return rows


class _Weights:
    """Random weights of a Llama model on the GPU."""

    def __init__(self, torch: Any, shape: dict) -> None:
        def random(*size: int) -> Any:
            return torch.randn(*size, device="cuda", dtype=torch.bfloat16) * 0.02

        hidden, wide = shape["hidden_size"], shape["intermediate_size"]
        self.num_heads, self.num_kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
        self.head_dim = hidden // self.num_heads
        self.theta = shape["rope_theta"]
        qkv = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.embed, self.output = random(shape["vocab_size"], hidden), random(shape["vocab_size"], hidden)
        self.norm = torch.ones(hidden, device="cuda", dtype=torch.bfloat16)
        self.layers = [
            (random(qkv, hidden), random(hidden, hidden), random(2 * wide, hidden), random(hidden, wide))
            for _ in range(shape["num_hidden_layers"])
        ]


def _step_s(torch: Any, weights: _Weights, batch: int, context: int) -> float:
    """Return the seconds of a greedy step over full caches: the replay of one graph."""
    functional = torch.nn.functional
    heads, kv_heads, dim = weights.num_heads, weights.num_kv_heads, weights.head_dim
    size = (len(weights.layers), 2, batch, kv_heads, context, dim)
    caches = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    token = torch.zeros(batch, device="cuda", dtype=torch.long)
    frequencies = weights.theta ** -(torch.arange(0, dim, 2, device="cuda") / dim)
    angles = torch.cat([(context - 1) * frequencies] * 2)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def rotate(x: Any) -> Any:
        halves = torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), -1)
        return x * cos + halves * sin

    def step() -> None:
        hidden = weights.embed[token]
        for number, (qkv_weight, output_weight, gate_up_weight, down_weight) in enumerate(weights.layers):
            normed = functional.rms_norm(hidden, (hidden.shape[-1],), weights.norm, 1e-5)
            qkv = functional.linear(normed, qkv_weight).view(batch, heads + 2 * kv_heads, 1, dim)
            query, key, value = qkv.split((heads, kv_heads, kv_heads), 1)
            keys, values = caches[number]
            keys[:, :, -1:], values[:, :, -1:] = rotate(key), value
            attended = functional.scaled_dot_product_attention(rotate(query), keys, values, enable_gqa=True)
            hidden = hidden + functional.linear(attended.reshape(batch, -1), output_weight)
            normed = functional.rms_norm(hidden, (hidden.shape[-1],), weights.norm, 1e-5)
            gate, up = functional.linear(normed, gate_up_weight).chunk(2, -1)
            hidden = hidden + functional.linear(functional.silu(gate) * up, down_weight)
        normed = functional.rms_norm(hidden, (hidden.shape[-1],), weights.norm, 1e-5)
        token.copy_(functional.linear(normed, weights.output).argmax(-1))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # kernels are loaded before the graph is recorded
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return _median_s(torch, graph.replay)


def _median_s(torch: Any, run: Callable[[], object]) -> float:
    """Return the seconds of one of `STEPS` runs, the median of rounds, by events of the device."""
    times = []
    for _ in range(1 + ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(STEPS):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / STEPS)
    return sorted(times[1:])[ROUNDS // 2]  # the first round warms up


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
