"""Every family says on two devices, and on four with copies of key-value heads, what transformers says."""

import pytest

from tests.parity.family_cases import FAMILY_CASES
from tests.process import run_on_devices
from tests.tolerances import SAME_MODEL_ATOL

NUM_PARTS = 4  # of the families, each in a process of its own
TIMEOUT_S = 800


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_devices_that_share_a_model_give_the_reference_logits(part: int):
    names = [case.name for case in FAMILY_CASES[part::NUM_PARTS]]
    distances = run_on_devices("tests.parity.family_devices_process", *names, num_devices=4, timeout_s=TIMEOUT_S)
    assert distances.keys() == set(names)
    assert all(max(found) <= SAME_MODEL_ATOL for found in distances.values()), distances
