"""Adapters of weights whose heads are copied, because there are fewer of them than devices."""

import jax
import numpy as np
import pytest

from service.device.mesh import DeviceMesh
from service.models.adapter_arrays import slot_arrays, weight_parts
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.weights.assembly import assemble_weights
from tests.parity.cases import Case

RANK, FLOAT32 = 3, np.dtype(np.float32)


@pytest.mark.parametrize("num_devices", [1, 4])
def test_a_copied_head_has_a_copy_of_what_an_adapter_adds_to_it(num_devices):
    config = read_config("test", Case("copies", "llama").hub_config).split_over(num_devices)
    [spec] = (spec for spec in decoder_weight_specs(config) if spec.name == "layers.0.qkv")
    random = np.random.RandomState(3)
    updates = {
        source.name: tuple(
            random.randn(*shape).astype(FLOAT32) for shape in ((2, source.shape[1]), (source.shape[0], 2))
        )
        for source in spec.sources
    }
    first, second = slot_arrays(spec, updates, RANK, FLOAT32)
    added = {name: b @ a for name, (a, b) in updates.items()}
    wanted = assemble_weights([spec], added, mesh=DeviceMesh((jax.devices()[0],)))[spec.name]
    axis, sizes = weight_parts([spec])[spec.name]
    ends = np.cumsum(sizes)
    for part, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        own = np.take(second, range(end - size, end), axis=1 + axis)
        found = np.tensordot(own, first[part], ((0,), (0,)))
        expected = np.take(np.asarray(wanted), range(end - size, end), axis=axis)
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
