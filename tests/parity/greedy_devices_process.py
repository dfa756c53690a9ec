"""A process that chooses the likeliest tokens on one device and on four, and prints them and the exchanges as JSON.

python -m tests.parity.greedy_devices_process, with XLA_FLAGS=--xla_force_host_platform_device_count=4
"""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from service.compile.aot import compile_programs
from service.device.mesh import DeviceMesh
from service.engine.steps.programs import engine_programs
from service.engine.steps.sampling import choose_likeliest
from service.models.decoder import Decoder
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.weights.assembly import assemble_weights
from tests.parity.tensor_parallel_process import MODELS, TWO_SLOTS, collectives

NUM_SEQS = 64


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

    shapes = replace(TWO_SLOTS, has_sampling_variants=True)
    programs = engine_programs(decoder, shapes, weight_shapes(decoder.weight_specs(), mesh))
    samplers = compile_programs([program for program in programs if program.name.startswith("sample")], num_threads=2)
    return {
        "token_ids": np.asarray(jax.jit(run)(weights, jax.device_put(hidden, mesh.replicated))).tolist(),
        "vocab_size": config.vocab_size,
        "collectives": {name: collectives(made.executable.compiled.as_text()) for name, made in samplers.items()},
    }


if __name__ == "__main__":
    print(json.dumps([choose(1), choose(4)]))
