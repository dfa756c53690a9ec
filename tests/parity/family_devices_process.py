"""Computes the reference text of some families on several devices, and prints how far their logits are off."""

import json
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from service.device.mesh import DeviceMesh
from service.kernels.paging import ZERO_STATE, Paging, Regions, StateSlots
from service.models.decoder import Decoder
from service.models.interface import LayerGroupInputs
from service.models.registry import read_config
from service.weights.assembly import assemble_weights
from tests.parity.family_cases import FAMILY_CASES, FamilyCase
from tests.parity.test_reference_logits import LAYOUT, PAGES, bare_tensors

NUM_DEVICES = (2, 4)


def possible_counts(case: FamilyCase) -> list[int]:
    """Return the numbers of devices that a model can be split over."""
    sizes = read_config("test", case.hub_config, case.max_model_len).split_sizes
    return [count for count in NUM_DEVICES if all(size % count == 0 for size in sizes.values())]


def distance(case: FamilyCase, num_devices: int) -> float:
    """Return the largest difference of a logit."""
    mesh = DeviceMesh(tuple(jax.devices()[:num_devices]))
    config = read_config("test", case.hub_config, case.max_model_len).split_over(num_devices)
    model = Decoder(config, mesh=mesh)
    weights = assemble_weights(model.weight_specs(), bare_tensors(case.model_type, case.tensors()), mesh=mesh)
    slots = StateSlots(jnp.array([ZERO_STATE]), jnp.array([0]))
    paging = Paging(jnp.array([0]), jnp.array([len(case.token_ids)]), jnp.asarray(PAGES[None]), states=slots)

    def forward(weights, token_ids):
        positions = paging.positions(token_ids.shape[1]).reshape(-1)
        hidden, rotation = model.embed(weights, token_ids.reshape(-1), positions)
        per_layer, caches = model.per_layer_inputs(weights, token_ids.reshape(-1), hidden), []
        for number, group in enumerate(model.layer_groups):
            of_group = per_layer[number] if per_layer else None
            inputs = LayerGroupInputs(hidden, rotation, Regions.of_prompts(paging), per_layer=of_group)
            read = tuple(caches[shared.group][shared.layer] for shared in group.shared)
            of_group = [weights[name] for name in group.weights]
            cache = model.initial_cache(replace(LAYOUT, num_states=1), group)
            hidden, changed = model.run_layer_group(group, of_group, read or cache, inputs)
            caches.append(changed)
        return model.logits(weights, hidden)

    logits = jax.jit(forward)(weights, jnp.asarray(case.token_ids[None]))
    return float(np.abs(np.asarray(logits) - np.load(case.reference_path)["logits"]).max())


if __name__ == "__main__":
    named = [case for case in FAMILY_CASES if case.name in sys.argv[1:]]
    print(json.dumps({case.name: [distance(case, count) for count in possible_counts(case)] for case in named}))
