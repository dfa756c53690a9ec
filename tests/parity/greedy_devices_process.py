"""A process that chooses the likeliest tokens on one device and on four, and prints them and the exchanges as JSON.

python -m tests.parity.greedy_devices_process, with XLA_FLAGS=--xla_force_host_platform_device_count=4
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from service.compile.aot import Compiled, compile_programs
from service.device.mesh import DeviceMesh
from service.engine.engine import Engine
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.steps.programs import engine_programs
from service.engine.steps.sampling import choose_likeliest
from service.models.decoder import Decoder
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.observability.model_metrics import ModelMetrics
from service.weights.assembly import assemble_weights
from tests.parity.tensor_parallel_process import MODELS, PROMPT, TWO_SLOTS, collectives

NUM_SEQS = 64
SHAPES = {"parts": TWO_SLOTS, "whole": replace(TWO_SLOTS, num_slots=1, has_whole_steps=True)}


def choose(num_devices: int) -> dict[str, object]:
    """Choose tokens by random hidden states, whose best logits are equal on two devices."""
    case, kernel, _ = MODELS["rows"]
    mesh = DeviceMesh(tuple(jax.devices()[:num_devices]))
    config = read_config("test", case.hub_config).split_over(num_devices)
    decoder = Decoder(config, kernel=kernel, mesh=mesh)
    tensors = dict(case.tensors())
    rows = tensors["lm_head.weight"].copy()
    rows[len(rows) // 2 :] = rows[: len(rows) // 2]  # each token has its equal on another device
    tensors["lm_head.weight"] = rows
    weights = assemble_weights(decoder_weight_specs(config), tensors, mesh=mesh)
    hidden = np.random.RandomState(0).randn(NUM_SEQS, config.hidden_size).astype(np.float32)
    hidden[-1] = np.nan  # a broken sequence

    def run(weights: dict[str, jax.Array], hidden: jax.Array) -> jax.Array:
        return choose_likeliest(decoder.logits(weights, hidden, jnp.int32(NUM_SEQS), stays_split=True), None)

    programs = {
        way: engine_programs(decoder, shapes, weight_shapes(decoder.weight_specs(), mesh))
        for way, shapes in SHAPES.items()
    }
    samplers = compile_programs(
        [program for program in programs["parts"] if program.name.startswith("sample")], num_threads=2
    )
    steps = compile_programs(programs["whole"], num_threads=2)
    runner = Runner(
        SHAPES["whole"], decoder.layer_groups, weights, {name: made.executable for name, made in steps.items()}
    )
    return {
        "token_ids": np.asarray(jax.jit(run)(weights, jax.device_put(hidden, mesh.replicated))).tolist(),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "collectives": exchanges(samplers),
        "whole_collectives": exchanges({name: made for name, made in steps.items() if name.startswith("whole")}),
        "generated": asyncio.run(generate(runner)),
    }


def exchanges(programs: Mapping[str, Compiled]) -> dict[str, list[tuple[str, list[int]]]]:
    """Return the exchanges of each program."""
    return {name: collectives(made.executable.compiled.as_text()) for name, made in programs.items()}


async def generate(runner: Runner) -> list[int]:
    """Generate the likeliest tokens by whole steps."""
    engine = Engine(runner, runner.shapes, ModelMetrics(), max_requests=1)
    runner.warm()
    engine.start()
    request = Request(id="greedy", prompt_ids=PROMPT, max_tokens=12, sampling=Sampling(temperature=0.0))
    token_ids = [token_id async for event in engine.submit(request) for token_id in event.token_ids]
    engine.stop()
    return token_ids


if __name__ == "__main__":
    print(json.dumps([choose(1), choose(4)]))
