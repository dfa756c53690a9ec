"""One service with the demo model for all tests that only talk to it."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.process import running_service

DEMO = Path(__file__).parents[1] / "service" / "demo"


def demo_tensors() -> dict[str, np.ndarray]:
    """The demo model's weights, in the type that they are stored in."""
    tensors = load_file(DEMO / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(ml_dtypes.bfloat16)}
    return tensors


@pytest.fixture(scope="session")
def demo_answers() -> list[dict[str, str]]:
    return json.loads((Path(__file__).parent / "demo_answers.json").read_text())


@pytest.fixture(scope="session")
def demo_service():
    with running_service() as service:
        yield service
