"""An adapter for a slot, with the copies of the base's embeddings that PEFT saves beside the updates."""

from pathlib import Path

import numpy as np
import pytest

from service.errors import RefusedAdapter
from service.models.adapter_arrays import AdapterShapes
from service.models.decoder import Decoder
from service.models.decoder_weights import decoder_weight_specs
from service.models.quantization import Quantization
from service.models.registry import read_config
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.context import StartContext
from service.start.kinds.adapter_reader import AdapterReader
from service.start.progress import StartProgress
from service.weights.assembly import assemble_weights
from tests.checkpoint.adapters.test_read import UPDATES, written
from tests.checkpoint.streamed import CONFIG, TENSORS

SLOTS = AdapterShapes(2, 4)
EMBED, HEAD = "base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight"
OWN = TENSORS["model.embed_tokens.weight"]


@pytest.fixture(params=[Quantization.NONE, Quantization.INT8], ids=str)
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> AdapterReader:
    metrics = Metrics()
    context = StartContext(Settings(model_uri=str(tmp_path)), metrics, StartProgress(metrics))
    config = read_config("m", CONFIG)
    specs = decoder_weight_specs(config, quantization=request.param)
    weights = assemble_weights(specs, TENSORS, mesh=None)
    groups = Decoder(config, adapters=SLOTS).layer_groups
    return AdapterReader(context, specs, groups, SLOTS, dtype=np.dtype(np.float32), weights=weights)


def test_copies_that_equal_the_model_s_own_arrays_are_left_out(reader: AdapterReader, tmp_path: Path):
    found = reader("a", str(written(tmp_path / "a", UPDATES | {EMBED: OWN, HEAD: OWN})))
    plain = reader("b", str(written(tmp_path / "b")))
    for own, other in zip(found.arrays, plain.arrays, strict=True):
        assert all(np.array_equal(first, second) for first, second in zip(own, other, strict=True))


def test_a_copy_that_differs_is_refused_by_name(reader: AdapterReader, tmp_path: Path):
    other = OWN.copy()
    other[7] *= 2
    with pytest.raises(RefusedAdapter, match="differs from the base's") as caught:
        reader("a", str(written(tmp_path / "a", UPDATES | {EMBED: OWN, HEAD: other})))
    assert caught.value.field == HEAD
