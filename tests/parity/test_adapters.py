"""A model into which an adapter was merged while loading has the logits of PEFT's own merge."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_checkpoint
from service.device.mesh import DeviceMesh
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from tests.parity.adapter_cases import ADAPTER_CASES, MERGED_CASES, AdapterCase
from tests.parity.cases import Case
from tests.parity.test_reference_logits import logits_by_chunk
from tests.served import DEMO
from tests.tolerances import SAME_MODEL_ATOL


def save_base(model: Case, folder: Path) -> Path:
    """Write the base model of an adapter."""
    folder.mkdir()
    shutil.copy(DEMO / "tokenizer.json", folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(model.hub_config))
    save_file(model.tensors(), folder / "model.safetensors")
    return folder


def merged_logits(base: Path, adapter: Path | None, token_ids: np.ndarray) -> np.ndarray:
    """Return the logits of a checkpoint that is loaded with an adapter."""
    located = locate(str(base), LocalSource, adapter_uri=None if adapter is None else str(adapter))
    model = Decoder(read_config("m", located.hub_config))
    mesh = DeviceMesh((jax.devices()[0],))
    loaded = load_checkpoint(located, model.weight_specs(), mesh=mesh, limits=LoadLimits(None, Progress(), 1 << 20))
    return logits_by_chunk(model, loaded.weights, token_ids, len(token_ids))


@pytest.mark.parametrize("case", [*ADAPTER_CASES, *MERGED_CASES], ids=lambda case: case.name)
def test_logits_equal_those_of_pefts_merge(case: AdapterCase, tmp_path: Path):
    base, adapter = save_base(case.model, tmp_path / "base"), case.save(tmp_path / "adapter")
    logits = merged_logits(base, adapter, case.model.token_ids)
    np.testing.assert_allclose(logits, case.reference_logits(), atol=SAME_MODEL_ATOL, rtol=0)
