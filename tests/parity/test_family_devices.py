"""Every family says on two devices, and on four with copies of key-value heads, what transformers says."""

import pytest

from tests.parity.family_cases import FAMILY_CASES
from tests.process import run_on_devices
from tests.tolerances import SAME_MODEL_ATOL


@pytest.mark.slow
def test_devices_that_share_a_model_give_the_reference_logits():
    distances = run_on_devices("tests.parity.family_devices_process", "2", "4", num_devices=4)
    assert distances.keys() == {case.name for case in FAMILY_CASES}
    assert all(max(found) <= SAME_MODEL_ATOL for found in distances.values()), distances
