"""The machines that programs can be compiled for."""

import pytest

from service.device.chips import CHIPS, TARGETS


@pytest.mark.parametrize(
    ("target", "chips"),
    [("v5e-1", [1, 1, 1]), ("v5e-4", [2, 2, 1]), ("v5e-8", [2, 4, 1]), ("v6e-4", [2, 2, 1]), ("v6e-8", [2, 4, 1])],
)
def test_the_arrangement_of_a_hosts_chips_follows_from_its_topology(target, chips):
    assert TARGETS[target].chips_of_host == chips


def test_each_target_is_of_a_chip_that_is_found_by_the_name_that_jax_has_for_it():
    assert {target.chip for target in TARGETS.values()} == set(CHIPS.values())
    assert all(chip.device_kind == kind for kind, chip in CHIPS.items())
