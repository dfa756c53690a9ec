"""A process with eight devices that serves a tiny model on some numbers of them, and prints the results as JSON.

python -m tests.parity.tensor_parallel_process rows 1 2, with XLA_FLAGS=--xla_force_host_platform_device_count=8
"""

import asyncio
import json
import re
import sys
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from service.bundles.bundle import make_bundle
from service.bundles.key import BundleKey
from service.checkpoint.adapters.host import host_adapter
from service.compile.aot import compile_programs
from service.compile.counter import CompileCounter
from service.compile.program import load_executable
from service.device.mesh import DeviceMesh
from service.engine.engine import Engine
from service.engine.request import Adapter, Request, Sampling
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes, StateShapes
from service.engine.steps.programs import engine_programs
from service.kernels.blocks import BlockAttention
from service.kernels.reference import PagedReference
from service.models.adapted import adapted_tensors
from service.models.adapter_arrays import AdapterShapes
from service.models.decoder import Decoder
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.observability.model_metrics import ModelMetrics
from service.weights.assembly import assemble_weights
from service.weights.low_rank import LowRankUpdate
from tests.parity.cases import Case
from tests.parity.family_cases import draw


class DrawnCase(Case):
    """A checkpoint of a family that no reference was made of."""

    def tensors(self) -> dict[str, np.ndarray]:
        """Draw every tensor that the model reads."""
        specs = decoder_weight_specs(read_config("test", self.hub_config))
        stored = (tensor for spec in specs for source in spec.sources for tensor in source.stored)
        return {tensor.name: draw(self.model_type, tensor.name, tensor.shape) for tensor in stored}


HEADS = {"num_attention_heads": 8, "num_hidden_layers": 2}
TWO_SLOTS = EngineShapes(num_slots=2, num_pages=16, page_size=4, max_model_len=32, max_prefill_tokens=8, row_tokens=4)
HOST = replace(TWO_SLOTS, has_sampling_variants=False)
WITH_STATES = replace(HOST, states=StateShapes(num_states=6, interval=64))
ONE_SLOT = replace(TWO_SLOTS, num_slots=1, has_whole_steps=True)  # half as much to compile
MODELS = {
    # Two and four devices divide its key-value heads, eight need copies; its vocabulary divides.
    "rows": (
        Case("four_kv_heads", "llama", {**HEADS, "num_key_value_heads": 4}),
        BlockAttention(),
        HOST,
    ),
    # Four devices need copies already, of biases too; its vocabulary, used twice, divides by nothing.
    "pages": (
        Case(
            "two_kv_heads",
            "llama",
            {**HEADS, "vocab_size": 97, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        ),
        PagedReference(),
        ONE_SLOT,
    ),
    "adapters": (
        Case("four_kv_heads", "llama", {**HEADS, "num_key_value_heads": 4}),
        BlockAttention(),
        replace(HOST, adapters=AdapterShapes(num_slots=2, rank=4)),
    ),
    # Two and four devices divide its key heads, with two value heads each.
    "matrices": (
        DrawnCase(
            "gated_delta",
            "qwen3_5_text",
            {
                **{**HEADS, "num_key_value_heads": 2, "head_dim": 16, "full_attention_interval": 2},
                **{"linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12},
                **{"linear_num_key_heads": 4, "linear_num_value_heads": 8},
                "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
            },
        ),
        BlockAttention(),
        replace(WITH_STATES, adapters=AdapterShapes(num_slots=2, rank=4)),
    ),
    # The same of its groups of heads, beside which it attends.
    "groups": (
        DrawnCase(
            "state_space",
            "falcon_h1",
            {
                **{**HEADS, "num_key_value_heads": 4, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_n_groups": 4},
                **{"mamba_d_state": 12, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
                **{"ssm_multipliers": [0.7, 1.3, 0.8, 1.2, 0.9], "mamba_proj_bias": True},
            },
        ),
        BlockAttention(),
        WITH_STATES,
    ),
    # Two devices divide the heads of both kinds of layers, four need copies of some; what branches add is whole.
    "branches": (
        DrawnCase(
            "branch_convolutions",
            "grug_moe",
            {
                **{**HEADS, "num_key_value_heads": 4, "local_kv_heads": 4, "global_kv_heads": 2, "head_dim": 16},
                **{"sliding_window": 8, "qk_mult": 1.5, "global_every": 2, "rope_theta": 10_000.0, "rope_fused": True},
                **{"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "latent_dim": 28},
                **{"shared_expert_intermediate_size": 20, "num_shared_experts": 2},
                **{"sconv": True, "sconv_kernel": 4, "sconv_sites": ["k", "attn", "mlp"]},
                **{"grugmoe_attention_mode": "production", "grugmoe_artifact_schema_version": 2},
            },
        ),
        BlockAttention(),
        WITH_STATES,
    ),
    "convolutions": (
        DrawnCase(
            "short_convolution",
            "lfm2",
            {**HEADS, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "conv_bias": True},
        ),
        BlockAttention(),
        WITH_STATES,
    ),
}
PROMPT = tuple(range(3, 21))  # three chunks


def serve(model: str, num_devices: int) -> dict[str, Any]:
    """Generate on so many devices, with executables that were serialized and loaded again."""
    case, kernel, shapes = MODELS[model]
    mesh = DeviceMesh(tuple(jax.devices()[:num_devices]))
    config = read_config("test", case.hub_config).split_over(num_devices)
    decoder = Decoder(config, kernel=kernel, mesh=mesh, adapters=shapes.adapters)
    specs = decoder_weight_specs(config)
    weights = assemble_weights(specs, case.tensors(), mesh=mesh)
    programs = engine_programs(decoder, shapes, weight_shapes(decoder.weight_specs(), mesh))
    compiled = compile_programs(programs, num_threads=2)
    bundle = make_bundle(
        BundleKey({}),
        {name: program.executable for name, program in compiled.items()},
        dict.fromkeys(compiled, 0.0),
        {},
    )
    executables = {name: load_executable(data, mesh.devices) for name, data in bundle.data.items()}
    runner = Runner(shapes, decoder.layer_groups, weights, executables)
    runner.warm()
    counter = CompileCounter()
    generated = generate(runner, adapters_of(case, decoder))
    counted = [counter.num_traces, counter.num_compiles]
    counter.close()
    cache = runner.cache_leaves()
    return {
        "generated": generated,
        "traces_and_compiles": counted,
        "cache_bytes": sum(leaf.addressable_shards[0].data.nbytes for leaf in cache),
        "reused_bytes": {
            name: program.executable.compiled.memory_analysis().alias_size_in_bytes
            for name, program in compiled.items()
        },
        "collectives": {name: collectives(program.executable.compiled.as_text()) for name, program in compiled.items()},
        "weights": {spec.name: [spec.axes, *placed(weights[spec.name])] for spec in specs},
        # After the steps: what was donated to them lies where it lay.
        "cache": [placed(leaf) for leaf in cache],
        "kv_heads": config.heads.num_kv_heads,
        "kv_copies": config.heads.kv_copies,
    }


def adapters_of(case: Case, decoder: Decoder) -> list[Adapter]:
    """Return two adapters of random values; none for a model without slots."""
    if decoder.adapters is None:
        return []
    specs, groups = decoder_weight_specs(decoder.config), decoder.layer_groups
    tensors = adapted_tensors(specs)
    made = []
    for name in ("first", "second"):
        random = np.random.RandomState(len(made))
        updates = {
            tensor_name: LowRankUpdate(
                (0.3 * random.randn(3, tensor.shape[1])).astype(np.float32),
                (0.3 * random.randn(tensor.shape[0], 3)).astype(np.float32),
            )
            for tensor_name, tensor in case.tensors().items()
            if tensor_name in tensors
        }
        shapes, dtype = decoder.adapters, np.dtype(np.float32)
        made.append(host_adapter(name, name.encode(), updates, specs=specs, groups=groups, shapes=shapes, dtype=dtype))
    return made


def placed(array: jax.Array) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return an array's shape and those of the parts that devices hold."""
    return array.shape, [shard.data.shape for shard in array.addressable_shards]


def collectives(text: str) -> list[tuple[str, list[int]]]:
    """Return every exchange between devices in a compiled program: its kind, and the shape of its first result."""
    found = re.findall(r"= \(?\w+\[([\d,]*)\][^=\n]*? ((?:all|collective)-[a-z-]+|reduce-scatter)\(", text)
    return sorted((kind, [int(size) for size in shape.split(",") if size]) for shape, kind in found)


def generate(runner: Runner, adapters: list[Adapter]) -> list[dict[str, Any]]:
    """Run requests of every kind: alone, together, with a prefix that an earlier one left, and with adapters."""
    engine = Engine(runner, runner.shapes, ModelMetrics(), max_requests=8)
    engine.start()
    drawn = Sampling(temperature=0.9, seed=7, top_p=0.95, top_k=40, num_logprobs=20)
    penalized = Sampling(
        temperature=1.2, seed=8, repetition_penalty=1.3, frequency_penalty=0.4, logit_bias={5: 2.0}, min_tokens=3
    )
    rounds = [
        [Request(id="greedy", prompt_ids=PROMPT, max_tokens=12, sampling=Sampling(temperature=0.0))],
        [
            Request(id="drawn", prompt_ids=PROMPT, max_tokens=12, sampling=drawn, num_prompt_logprobs=20),
            Request(id="penalized", prompt_ids=PROMPT[5:9], max_tokens=12, sampling=penalized),
            Request(id="again", prompt_ids=(*PROMPT, 2), max_tokens=12, sampling=Sampling(temperature=0.0)),
        ],
        [
            Request(id=adapter.name, prompt_ids=PROMPT, max_tokens=12, sampling=drawn, adapter=adapter)
            for adapter in adapters
        ],
    ]
    results = [result for requests in rounds for result in asyncio.run(_read_all(engine, requests))]
    engine.stop()
    return results


async def _read_all(engine: Engine, requests: list[Request]) -> list[dict[str, Any]]:
    async def read(request: Request) -> dict[str, Any]:
        events = [event async for event in engine.submit(request)]
        logprobs = [known for event in events for known in (*event.prompt_logprobs, *event.logprobs)]
        return {
            "id": request.id,
            "token_ids": [token_id for event in events for token_id in event.token_ids],
            "num_cached_tokens": events[0].num_cached_tokens,
            "logprobs": [[known.logprob, *dict(known.top).values()] for known in logprobs if known is not None],
        }

    return await asyncio.gather(*[read(request) for request in requests])


if __name__ == "__main__":
    assert jax.device_count() == 8, "XLA_FLAGS must ask for eight devices"
    model, *counts = sys.argv[1:]
    print(json.dumps({count: serve(model, int(count)) for count in counts}))
