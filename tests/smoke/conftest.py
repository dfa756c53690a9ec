"""Tests of a deployed service run only where `--url` names one."""

import pytest


def pytest_collection_modifyitems(config, items):
    if config.getoption("--url") is None:
        deployed = [item for item in items if item.get_closest_marker("deployed")]
        config.hook.pytest_deselected(items=deployed)
        items[:] = [item for item in items if item not in deployed]


@pytest.fixture(scope="session")
def flags(pytestconfig) -> list[str]:
    """The flags of `levserve smoke` that were given to pytest."""
    names = ("--model", "--api-key", "--identity-token", "--audience")
    given = {name: pytestconfig.getoption(name) for name in names} | {"--timeout": pytestconfig.getoption("--patience")}
    return [f"{name}={value}" for name, value in given.items() if value is not None]
