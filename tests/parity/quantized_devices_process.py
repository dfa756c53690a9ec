"""A process with four devices that computes logits of an int8 model on 1, 2 and 4 of them, and prints facts as JSON.

python -m tests.parity.quantized_devices_process, with XLA_FLAGS=--xla_force_host_platform_device_count=4
"""

import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from service.device.mesh import DeviceMesh
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging, Regions
from service.models.decoder import Decoder
from service.models.interface import LayerGroupInputs
from service.models.quantization import Quantization
from service.models.registry import read_config
from service.weights.assembly import assemble_weights
from tests.parity.cases import Case

CASE = Case("two_kv_heads", "llama", {"num_attention_heads": 8, "num_hidden_layers": 2, "num_key_value_heads": 2})
LAYOUT = CacheLayout(num_pages=2, page_size=4)
TOKEN_IDS = np.arange(3, 11, dtype=np.int32)[None]


def compute(num_devices: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the logits of a prompt, and what its executable does with int8."""
    mesh = DeviceMesh(tuple(jax.devices()[:num_devices]))
    config = read_config("test", CASE.hub_config).split_over(num_devices)
    model = Decoder(config, quantization=Quantization.INT8, mesh=mesh)
    weights = assemble_weights(model.weight_specs(), CASE.tensors(), mesh=mesh)

    def logits(weights: Any, token_ids: Any) -> Any:
        paging = Paging(jnp.array([0]), jnp.array([8]), jnp.array([[0, 1]]))
        hidden, rotation = model.embed(weights, token_ids.reshape(-1), paging.positions(8).reshape(-1))
        for group in model.layer_groups:
            of_group = [weights[name] for name in group.weights]
            cache = model.initial_cache(LAYOUT, group)
            inputs = LayerGroupInputs(hidden, rotation, Regions.of_prompts(paging))
            hidden, _ = model.run_layer_group(group, of_group, cache, inputs)
        return model.logits(weights, hidden)

    compiled = jax.jit(logits).lower(weights, TOKEN_IDS).compile()
    return np.asarray(compiled(weights, TOKEN_IDS)), {
        "gathered_weights": len(re.findall(r"= s8\[[^=]*all-gather\(", compiled.as_text())),
        "part_of_down": weights["layers.0.down"].addressable_shards[0].data.shape,
    }


if __name__ == "__main__":
    alone, _ = compute(1)
    found = {}
    for count in (2, 4):
        shared, facts = compute(count)
        found[count] = {**facts, "largest_difference": float(np.abs(shared - alone).max())}
    json.dump(found, sys.stdout)
